// StateKeeper: which states of a running sequence stay, and its units through a step. Not thread safe.
//
// States are kept (docs/decisions.md, "Recurrent states in the tree")
//   at every stride       tokens from the start of the text; or at the last whole block before that where it may be cut
//   before a prompt's end at its last whole block: as far as the same prompt can match
//   at branch points      where a request found more tokens cached than states, and where others part from this one
//                         (keep_at())
//   at a sequence's end   wherever that is: its state is there anyway
//   before it             with CacheConfig::keep_ends: at its last whole block so far, as long as nobody has used that
// To keep a state is to write no further in it. It costs the sequence a new unit, and is left out where there is no
// room for that beside a block more for every sequence.
//
// Invariant: a running sequence whose state is frozen has a unit reserved, unless fork() outran its n_samples.
#pragma once

#include <cstdint>
#include <limits>

#include "kv/budget.h"
#include "kv/cache_config.h"
#include "kv/cache_sequence.h"
#include "kv/faults.h"
#include "kv/state_table.h"

namespace coppice::kv {

class StateKeeper {
 public:
  StateKeeper(const CacheConfig& config, StateTable& states, Budget& budget, const Sequences& sequences)
      : config_(config), states_(states), budget_(budget), sequences_(sequences) {}

  static constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

  /// The next position behind `len` where a state of the sequence is to be kept; or kNone.
  std::int32_t next(const CacheSequence& seq) const;
  /// The last whole block at or before `position` shall have one, if the sequence has not passed it.
  void keep_at(CacheSequence& seq, std::int32_t position) const;

  /// Pages that the sequence's next step takes to write its state. Of a draft step the state before it stays as it is.
  std::int32_t to_take(const CacheSequence& seq, bool draft = false) const {
    const bool frozen = seq.states.now.frozen() && !fault(Fault::kFrozenStateWritten);
    const bool stays = draft && !fault(Fault::kDraftInPlace);
    return !seq.states.now || frozen || stays ? config_.state_pages : 0;
  }
  /// So many fewer if it goes on in its own state, that only the tree holds besides; and to do so. No other request
  /// finds that any more.
  std::int32_t spared_in_place(const CacheSequence& seq) const {
    const StateRef& now = seq.states.now;
    return now && now.frozen() && states_.users(now.unit()) == 1 ? config_.state_pages : 0;
  }
  std::int32_t go_on_in_place(CacheSequence& seq) {
    states_.leave(seq.states.now.unit());
    return config_.state_pages;
  }
  /// A step begins: takes them. REQUIRES: to_take() can be had.
  void begin_step(CacheSequence& seq, bool draft);
  /// The step's tokens are all taken back: the state before it is the sequence's.
  void rewind(CacheSequence& seq);
  /// The step is done, its full blocks are in the tree: keeps the state if it is to be kept.
  void end_step(CacheSequence& seq);
  /// The sequence is about to end, and all it computed is in the tree: its state stays, too.
  void keep_last(const CacheSequence& seq) noexcept;

 private:
  void promise_again(CacheSequence& seq);
  bool room() const;
  bool wanted(const CacheSequence& seq) const;
  /// The last whole block at or before `position` where its text may be cut.
  std::int32_t last_cut(const CacheSequence& seq, std::int32_t position) const;
  bool is_end(const CacheSequence& seq) const;
  void move_end(CacheSequence& seq);
  bool enter(const CacheSequence& seq) noexcept;

  const CacheConfig& config_;
  StateTable& states_;
  Budget& budget_;
  const Sequences& sequences_;
};

}  // namespace coppice::kv
