// PrefillShares: how a step's rows for prompts are shared out.
//
// Keys get equal parts, in the order of their first to arrive, and what one doesn't want goes to those behind. In its
// key's part, in rank, each takes up to three quarters, the next three quarters of the rest, and so on, so that a short
// prompt gets through behind a long one; what nobody wants goes to the first again. Those before the first of a key to
// arrive leave it its part: the Scheduler's invariant 3. So it is with the rows among them that are scored. Nobody gets
// rows beyond where its next state is kept, and all end where a prompt may be cut.
//
// A medium that can't be cut is computed in one step, if need be beyond its share and the budget. If the step has no
// room left for it, it comes first in the next one; those that wait so by arrival, whatever their priorities.
//
// Not thread safe; the engine's thread owns it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "engine/sequence.h"
#include "kv/cache.h"

namespace coppice::engine {

class PrefillShares {
 public:
  /// scored_rows: of a step, those whose logits score prompts' tokens, at most. max_batch: sequences that run, at most.
  PrefillShares(const kv::Cache& cache, int steps_in_hand, int scored_rows, int max_batch)
      : cache_(cache), steps_in_hand_(steps_in_hand), scored_rows_(scored_rows) {
    claimants_.reserve(static_cast<std::size_t>(max_batch));
    budgets_.reserve(static_cast<std::size_t>(max_batch));
  }

  /// Sets `rows` of those that prefill among `running`, which are in rank: `budget` together at most, but for a medium
  /// that can't be cut; with that `limit`. Takes no memory.
  void grant(std::span<Sequence* const> running, int budget, int limit);

 private:
  /// What a key has left of its part.
  struct KeyBudget {
    const KeyShare* key = nullptr;
    const Sequence* first_arrived = nullptr;
    int behind = 0;  ///< sequences that had nothing yet
    int all = -1;    ///< rows at first; -1: it has none yet
    int left = 0;
    int all_scored = 0, left_scored = 0;
    bool before_first = true;

    int kept_for_first(int of, int block_size) const { return before_first ? std::min(block_size, (of + 3) / 4) : 0; }
    /// Of the `rest` of `of` rows: what the next one may take.
    int share(int rest, int of, int block_size) const;
  };
  struct Claimant {
    std::size_t budget = 0;  ///< its key's
    Sequence* sequence = nullptr;
  };

  void order(std::span<Sequence* const> running);
  int most_rows(const Sequence& sequence, int scored) const;
  int rows_of(const Sequence& sequence, int share, int scored, int room) const;

  const kv::Cache& cache_;
  int steps_in_hand_;
  int scored_rows_;
  std::vector<KeyBudget> budgets_;
  std::vector<Claimant> claimants_;  ///< in the order in which they get rows
};

}  // namespace coppice::engine
