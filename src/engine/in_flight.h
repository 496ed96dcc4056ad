// InFlight: who waits for whose blocks. A waiting sequence that shares whole blocks with an admitted one that is still
// prefilling them follows it: it stays in the queue, holds no reference and no reservation, and is not admitted before
// those blocks are computed. Not thread safe.
//
// Invariants
//  1. Only admitted, prefilling sequences lead; a follower leads nobody.
//  2. A follower needs more tokens than its leader has published, and at most the leader's prompt: so it is woken at
//     the latest when the leader's prefill ends.
//  3. Nobody follows the less important, nor any but the first of another key: more important prompts, and the first
//     ones of keys, can leave those a few rows a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/sequence.h"

namespace coppice::engine {

class InFlight {
 public:
  /// At most `max_leaders` lead at a time. `states`: of the model has recurrent layers, and who follows needs a state
  /// to start on.
  InFlight(int block_size, bool states, int max_leaders) : block_size_(block_size), states_(states) {
    leaders_.reserve(static_cast<std::size_t>(max_leaders));
  }

  struct LeaderMatch {
    Sequence* leader = nullptr;
    /// Tokens the leader has to publish first; whole blocks, or up to the end of a medium that can't be cut.
    std::int32_t needed = 0;
  };

  /// Of the leaders as important as `sequence` or more, the one that shares the most with it, if waiting for that gives
  /// more than the `matched` tokens that the tree has now. The first in rank among equals.
  std::optional<LeaderMatch> find(const Sequence& sequence, std::int32_t matched) const;

  void follow(Sequence& follower, const LeaderMatch& match);
  void unfollow(Sequence& follower);

  /// REQUIRES: admitted, kPrefill, not leading yet.
  void lead(Sequence& sequence);

  /// `leader` is through with its prefill, or gone. Wakes all who follow it.
  void leave(Sequence& leader);

  /// Leaders have computed more. Wakes those whose blocks are all there.
  void wake();

  /// Whether what leaders have in planned steps has all the blocks that somebody waits for.
  bool near() const;

  int followers() const { return static_cast<int>(followers_.size()); }

 private:
  std::int32_t useful(kv::TextView wanted, const Sequence& leader, std::int32_t whole, std::int32_t most) const;
  bool is_first_of_key(const Sequence& leader) const;
  template <class Predicate>
  void wake_if(Predicate predicate);

  int block_size_;
  bool states_;
  std::vector<Sequence*> leaders_;  ///< by rank
  std::vector<Sequence*> followers_;
};

}  // namespace coppice::engine
