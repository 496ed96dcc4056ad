#include "kv/budget.h"

#include <algorithm>
#include <stdexcept>

#include "check/assert.h"
#include "kv/faults.h"

namespace coppice::kv {

Budget::Claim Budget::claim(const PrefixMatch& match, std::int32_t prompt_blocks) const {
  const auto matched = static_cast<std::int32_t>(match.rows.size());
  Claim sum{.fresh = prompt_blocks - matched, .cached = matched - blocks_in_use(match, pool_)};
  for (int g = 1; g < config_.n_groups(); ++g) {
    std::int32_t held = 0;
    for (std::int32_t b = config_.first_needed_block(g, match.length); b < matched; ++b) {
      const BlockId id = match.rows[b][g];
      // What others use as well may stay theirs when the window has passed: it pays for nothing.
      held += id != kNullBlock && pool_.users(id) == 0;
    }
    sum.cached += held;
    sum.fresh += to_come(g, matched, held, prompt_blocks);
  }
  sum.lone_state = match.state != kNoUnit && pool_.users(match.state_page) == 0;
  if (sum.lone_state) sum.cached += config_.state_pages;
  return sum;
}

std::int32_t Budget::to_come(int g, std::int32_t blocks, std::int32_t held, std::int32_t prompt_blocks) const {
  const std::int32_t room = config_.most_held(config_.groups[g], prompt_blocks) - held;
  return std::max(0, std::min(prompt_blocks - blocks, room));
}

void Budget::reserve_ahead(CacheSequence& seq) {
  const std::int32_t blocks = config_.blocks_for(seq.len);  // of each table
  if (blocks >= seq.prompt_blocks) return;
  std::int64_t wanted = seq.growth_reserve;
  for (int g = 0; g < config_.n_groups(); ++g) {
    const std::int32_t held = blocks - config_.first_kept_block(g, seq.computed_len());
    wanted += to_come(g, blocks, held, seq.prompt_blocks);
  }
  reserve(seq, std::clamp<std::int64_t>(wanted - seq.reserved, 0, available(0)));
}

BlockRef Budget::allocate(CacheSequence& seq) {
  if (fault(Fault::kEvictInUse) && pool_.free() == 0) {
    for (BlockId id = 1; id < config_.num_blocks; ++id) {
      if (pool_.users(id) > 0) return pool_.acquire(id);
    }
  }
  COPPICE_ASSERT(available(seq.reserved) > 0);
  while (pool_.free() == 0) {
    const BlockId victim = pool_.order().next();
    if (victim == kNullBlock) throw std::logic_error("kv cache: a reserved block could not be had");
    if (on_eviction_) storables_->before_eviction(victim, on_eviction_);
    evictions_ += tree_.evict(victim);
  }
  BlockRef fresh = pool_.allocate();
  if (seq.reserved > 0) {
    --seq.reserved;
    --reserved_;
  }
  return fresh;
}

StateRef Budget::allocate_state(CacheSequence& seq, StateTable& states) {
  std::vector<BlockRef> pages;
  pages.reserve(static_cast<std::size_t>(config_.state_pages));
  while (std::ssize(pages) < config_.state_pages) pages.push_back(allocate(seq));
  seq.growth_reserve = std::max(0, seq.growth_reserve - config_.state_pages);
  return states.make(pages);
}

}  // namespace coppice::kv
