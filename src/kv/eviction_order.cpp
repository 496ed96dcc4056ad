// Another rule: coldest(). What the order knows of a block comes from prefix_tree.cpp, cache.cpp and, when it is let
// go, block_pool.cpp. The cache knows no roles: what a request says must come through AdmitRequest (cache.h). To hold
// one prefix there are pins (docs/decisions.md, "Pins"). cache_check.cpp checks invariant 2. Measure with `make
// bench-traces`.
#include "kv/eviction_order.h"

#include <algorithm>
#include <cmath>

#include "check/assert.h"

namespace coppice::kv {

std::uint32_t EvictionOrder::enter(std::span<const BlockId> row, const Digest* digest) {
  ++now_;
  std::uint32_t uses = 1;
  if (const auto known = digest != nullptr ? evicted_.recall(*digest) : std::nullopt) {
    if (known->uses == 1) learn_distance(static_cast<std::uint32_t>(now_) - known->last_use);
    uses = std::min(known->uses + 1, kMostUses);
  }
  for (const BlockId id : row) {
    if (id != kNullBlock) links_[index(id)].uses = static_cast<std::uint8_t>(uses);
  }
  return uses;
}

bool EvictionOrder::raise(BlockId id, std::uint32_t uses) {
  COPPICE_ASSERT(!contains(id));
  Link& link = links_[index(id)];
  if (link.uses >= uses) return false;
  link.uses = static_cast<std::uint8_t>(uses);
  return true;
}

void EvictionOrder::use(BlockId id, bool came_back) {
  Link& link = links_[index(id)];
  if (link.uses == 1 && came_back) learn_distance(now_ - link.last_use);
  if (link.uses < kMostUses) ++link.uses;
}

void EvictionOrder::remember(BlockId id, const Digest& digest, bool sample) {
  const Link& link = links_[index(id)];
  (sample ? evicted_ : evicted_lately_)
      .remember(digest, {.uses = link.uses, .last_use = static_cast<std::uint32_t>(link.last_use)});
}

void EvictionOrder::learn_distance(std::uint64_t distance) {
  learned_ = std::min<std::uint64_t>(learned_ + 1, links_.size() * kRememberedPools / kSampleEach);
  mean_log2_ += (std::log2(static_cast<double>(distance + 1)) - mean_log2_) / static_cast<double>(learned_);
  distance_ = static_cast<std::uint64_t>(std::exp2(mean_log2_));
}

void EvictionOrder::add(BlockId id, int group, Heat heat) {
  COPPICE_ASSERT(!contains(id));
  Link& link = links_[index(id)];
  const int level = heat == Heat::kHot ? link.uses - 1 : 0;
  link.list = static_cast<std::int16_t>(group * static_cast<int>(kMostUses) + level);
  Ends& ends = ends_[static_cast<std::size_t>(link.list)];
  if (heat == Heat::kHot) {
    link.last_use = now_;
    link.colder = ends.hot;
    link.hotter = kNullBlock;
    (ends.hot == kNullBlock ? ends.cold : links_[index(ends.hot)].hotter) = id;
    ends.hot = id;
  } else {
    link.last_use = 0;
    link.hotter = ends.cold;
    link.colder = kNullBlock;
    (ends.cold == kNullBlock ? ends.hot : links_[index(ends.cold)].colder) = id;
    ends.cold = id;
  }
}

void EvictionOrder::remove(BlockId id) {
  COPPICE_ASSERT(contains(id));
  Link& link = links_[index(id)];
  Ends& ends = ends_[static_cast<std::size_t>(link.list)];
  (link.colder == kNullBlock ? ends.cold : links_[index(link.colder)].hotter) = link.hotter;
  (link.hotter == kNullBlock ? ends.hot : links_[index(link.hotter)].colder) = link.colder;
  link.colder = link.hotter = kNullBlock;
  link.list = -1;
}

BlockId EvictionOrder::coldest(std::size_t first_list, std::size_t end_list) const {
  BlockId best = kNullBlock;
  std::uint64_t least = 0;
  for (std::size_t list = first_list; list < end_list; ++list) {
    const BlockId id = ends_[list].cold;
    if (id == kNullBlock) continue;
    const std::uint64_t rank = links_[index(id)].last_use + distance_ * (list % kMostUses);
    if (best != kNullBlock && rank >= least) continue;
    best = id;
    least = rank;
  }
  return best;
}

}  // namespace coppice::kv
