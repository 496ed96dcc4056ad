#include "kv/state_keeper.h"

#include <algorithm>
#include <new>
#include <span>
#include <utility>

#include "check/assert.h"
#include "kv/faults.h"

namespace coppice::kv {

std::int32_t StateKeeper::next(const CacheSequence& seq) const {
  if (!states_.enabled() || !config_.share) return kNone;
  std::int32_t next = 0;
  for (std::int32_t n = seq.len / config_.state_stride + 1; next <= seq.len; ++n)
    next = last_cut(seq, n * config_.state_stride);
  for (const std::int32_t position : seq.states.kept) {
    if (position > seq.len) next = std::min(next, position);
  }
  return next;
}

std::int32_t StateKeeper::last_cut(const CacheSequence& seq, std::int32_t position) const {
  for (;;) {
    const std::int32_t whole = position / config_.block_size * config_.block_size;
    position = cuts(seq.prompt_media, whole).before;
    if (position == whole) return whole;
  }
}

void StateKeeper::keep_at(CacheSequence& seq, std::int32_t position) const {
  if (!states_.enabled() || !config_.share) return;
  const std::int32_t whole = last_cut(seq, position);
  std::vector<std::int32_t>& kept = seq.states.kept;
  if (whole > seq.computed_len() && std::ranges::find(kept, whole) == kept.end()) kept.push_back(whole);
}

void StateKeeper::begin_step(CacheSequence& seq, bool draft) {
  if (to_take(seq, draft) == 0) return;
  const std::int32_t reserved = seq.reserved, growth_reserve = seq.growth_reserve;
  seq.states.next = budget_.allocate_state(seq, states_);
  seq.states.promised = reserved - seq.reserved;
  seq.states.growth_reserve = growth_reserve - seq.growth_reserve;
}

void StateKeeper::rewind(CacheSequence& seq) {
  if (!states_.enabled()) return;
  COPPICE_ASSERT(seq.states.next || fault(Fault::kDraftInPlace));
  seq.states.next = {};
  promise_again(seq);
}

// The unit that the step took is given back, or the one in whose place it has come.
void StateKeeper::promise_again(CacheSequence& seq) {
  budget_.reserve(seq, std::exchange(seq.states.promised, 0));
  seq.growth_reserve += std::exchange(seq.states.growth_reserve, 0);
}

void StateKeeper::end_step(CacheSequence& seq) {
  if (!states_.enabled()) return;
  SequenceStates& states = seq.states;
  if (states.next) {
    const bool stays = !states.now || states.now.frozen();  // or there was none
    {
      const StateRef old = std::exchange(states.now, std::exchange(states.next, {}));
      if (fault(Fault::kStaleState) && old) states.now = old.share();
    }
    if (!stays) promise_again(seq);
    states.promised = states.growth_reserve = 0;
  }
  const bool live = !states.now.frozen();  // else it has a unit reserved already
  const bool stays_for_good = wanted(seq);
  if ((stays_for_good || is_end(seq)) && (!live || room()) && enter(seq)) {
    if (live) budget_.reserve_spare(seq, config_.state_pages);
    if (!stays_for_good) move_end(seq);
  }
  std::erase_if(states.kept, [&](std::int32_t position) { return position <= seq.computed_len(); });
}

bool StateKeeper::room() const {
  const auto growth = static_cast<std::int64_t>(sequences_.size()) * config_.n_groups();
  return budget_.available(0) >= config_.state_pages + growth;
}

bool StateKeeper::wanted(const CacheSequence& seq) const {
  if (!config_.share) return false;
  if (fault(Fault::kStateOffByOne) && seq.computed_len() % config_.block_size == 1) return true;
  const std::int32_t stride = config_.state_stride;
  const std::int32_t next = (seq.computed_len() + stride - 1) / stride * stride;
  return last_cut(seq, next) == seq.computed_len() ||
         std::ranges::find(seq.states.kept, seq.computed_len()) != seq.states.kept.end();
}

bool StateKeeper::is_end(const CacheSequence& seq) const {
  const std::int32_t bs = config_.block_size;
  return config_.keep_ends && config_.share && seq.computed_len() % bs == 0 &&
         seq.computed_len() >= seq.prompt_blocks * bs;
}

// A state that was just entered is the sequence's end now. The one before goes, if only the tree holds it, and nobody
// has started on it.
void StateKeeper::move_end(CacheSequence& seq) {
  const BlockId anchor = seq.tables[0][seq.computed_len() / config_.block_size - 1];
  const BlockId before = std::exchange(seq.states.end, anchor);
  if (before == kNullBlock) return;
  const UnitId unit = states_.find(before, {});
  if (unit != kNoUnit && states_.users(unit) == 0 && !states_.was_used(unit)) states_.leave(unit);
}

void StateKeeper::keep_last(const CacheSequence& seq) noexcept {
  if (states_.enabled() && config_.share && seq.states.now) enter(seq);
}

// False: there is no whole block to stand behind, the tree has this state, or memory ran out.
bool StateKeeper::enter(const CacheSequence& seq) noexcept try {
  const std::int32_t blocks = seq.computed_len() / config_.block_size;
  if (blocks == 0) return false;
  const BlockId anchor = seq.tables[0][blocks - 1];
  auto rest = seq.tokens.view().subspan(static_cast<std::size_t>(blocks * config_.block_size));
  if (fault(Fault::kStateOffByOne)) rest = {};
  if (states_.find(anchor, rest) != kNoUnit) return false;
  states_.enter(seq.states.now, anchor, rest);
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace coppice::kv
