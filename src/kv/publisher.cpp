#include "kv/publisher.h"

#include <algorithm>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "kv/faults.h"

namespace coppice::kv {

void Publisher::publish_step(CacheSequence& seq) {
  if (config_.share) publish_full_blocks(seq);
  if (!seq.wanted_tails.empty()) publish_wanted_tail(seq);
  keeper_.end_step(seq);
  drop_passed_windows(seq);
}

void Publisher::publish_full_blocks(CacheSequence& seq) {
  const int bs = config_.block_size;
  const bool unfilled = fault(Fault::kPublishUnfilled) && seq.computed_len() % bs == bs - 1;
  const std::int32_t full = seq.computed_len() / bs + (unfilled ? 1 : 0);
  if (seq.published >= full) return;
  if (unfilled) seq.tokens.append(std::vector<Token>{0});

  std::vector<BlockId> ids(config_.groups.size());
  PrefixTree::Cursor at = seq.published == 0 ? tree_.root(seq.ns) : tree_.after(seq.tables[0][seq.published - 1]);
  for (; seq.published < full; ++seq.published) {
    const std::int32_t b = seq.published;
    for (std::size_t g = 0; g < ids.size(); ++g) ids[g] = seq.tables[g][b];
    at = tree_.publish(at, seq.tokens.view().subspan(static_cast<std::size_t>(b * bs), static_cast<std::size_t>(bs)),
                       ids);
    for (std::size_t g = 0; g < ids.size(); ++g) {
      if (ids[g] == seq.tables[g][b]) continue;
      // The tree has this block already: use its copy and let go of ours.
      BlockRef ours = seq.tables[g].replace(b, pool_.acquire(ids[g]));
      if (fault(Fault::kStaleTableAfterMerge)) ours = seq.tables[g].replace(b, std::move(ours));
    }
  }
  if (unfilled) seq.tokens.truncate(seq.tokens.size() - 1);
}

// A sequence must be able to end in any case: its tail is not kept (false) if memory runs out, now or when its last
// step was published, or if the copy that makes the tail may never run. What a step in flight writes lies behind the
// computed tokens: whoever takes the tail from the tree copies no more than these.
bool Publisher::publish_partial_tail(CacheSequence& seq) noexcept {
  const int filled = seq.computed_len() % config_.block_size;
  if (!config_.share || filled == 0) return true;
  const std::int32_t b = seq.computed_len() / config_.block_size;
  if (seq.published < b || (seq.tail_forked && !fault(Fault::kKeepForkedTail))) return false;
  try {
    std::vector<BlockId> ids(seq.tables.size());
    std::ranges::transform(seq.tables, ids.begin(), [b](const BlockTable& table) { return table[b]; });
    const PrefixTree::Cursor at = b == 0 ? tree_.root(seq.ns) : tree_.after(seq.tables[0][b - 1]);
    tree_.publish(at, seq.tokens.view().last(static_cast<std::size_t>(filled)), ids);
    return true;
  } catch (const std::exception&) {  // bad_alloc, or OpenSSL's way of saying the same
    return false;
  }
}

// From then on the tail is shared, and the sequence's next step forks it.
void Publisher::publish_wanted_tail(CacheSequence& seq) noexcept {
  const std::int32_t at = seq.computed_len();
  const bool wanted = std::ranges::find(seq.wanted_tails, at) != seq.wanted_tails.end();
  std::erase_if(seq.wanted_tails, [at](std::int32_t position) { return position <= at; });
  if (!wanted || seq.len > at || budget_.available(0) < config_.n_groups()) return;
  if (publish_partial_tail(seq)) budget_.reserve_spare(seq, config_.n_groups());
}

void Publisher::publish_end(CacheSequence& seq) noexcept {
  const bool kept = publish_partial_tail(seq);
  if (kept && seq.len == seq.computed_len()) keeper_.keep_last(seq);  // else a step may have written it in place
}

void Publisher::drop_passed_windows(CacheSequence& seq) {
  for (int g = 1; g < config_.n_groups(); ++g) {
    const GroupSpec& group = config_.groups[g];
    BlockTable& table = seq.tables[g];
    // Backwards up to the first entry that was dropped before: O(blocks dropped).
    auto b = config_.first_kept_block(g, seq.computed_len()) - 1;
    while (seq.awaits && b >= 0 && table[b] == kNullBlock) --b;  // the gap before what has come
    for (; b >= 0 && table[b] != kNullBlock; --b) {
      const bool keep_longer = pool_.in_tree(table[b]) && tree_.before_branch(table[b], group);
      table.drop(b, keep_longer ? Heat::kHot : Heat::kCold);
    }
  }
  budget_.reserve_ahead(seq);
}

}  // namespace coppice::kv
