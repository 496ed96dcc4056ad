// InFlight: who waits for whose blocks [K7]. A waiting sequence that shares whole blocks with an admitted one
// that is still prefilling them follows it: it holds no reference and no reservation, only a place on the
// leader's list. Not thread safe.
//
// Owns: nothing; the lists live in the sequences.
//
// Invariants
//  1. Only admitted, prefilling sequences lead; a follower leads nobody.
//  2. A follower's needed length is more than its leader has published, and at most the leader's prompt: so
//     it is woken at the latest when the leader's prefill ends.
//  3. Nobody follows the less important: more important prompts can leave those a few rows a step. So what a
//     follower waits for beyond its leader's prefill is more important than itself, or arrived before its leader.
//  4. Waking costs O(log) for each one woken, not for each one waiting.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/sequence.h"

namespace coppice::engine {

class InFlight {
 public:
  /// At most `max_leaders` lead at a time.
  InFlight(int block_size, int max_leaders) : block_size_(block_size) {
    leaders_.reserve(static_cast<std::size_t>(max_leaders));
  }

  struct Place {
    Sequence* leader = nullptr;
    std::int32_t needed = 0;  ///< tokens the leader has to publish first; whole blocks
  };

  /// Of the leaders as important as `sequence` or more, the one that shares the most with it, if waiting for that gives
  /// more than the `matched` tokens that the tree has now. The first in rank among equals.
  std::optional<Place> find(const Sequence& sequence, std::int32_t matched) const;

  void follow(Sequence& follower, const Place& place);
  void unfollow(Sequence& follower);

  /// REQUIRES: admitted, kPrefill, not leading yet.
  void lead(Sequence& sequence);

  /// `leader` has computed more. Adds those whose blocks are all there to `woken`.
  void published(Sequence& leader, std::vector<Sequence*>& woken);

  /// `leader` is through with its prefill, or gone. Adds all who still waited to `woken`.
  void leave(Sequence& leader, std::vector<Sequence*>& woken);

  int followers() const { return followers_; }

 private:
  void wake(Sequence& follower, std::vector<Sequence*>& woken);

  int block_size_;
  std::vector<Sequence*> leaders_;  ///< by rank
  int followers_ = 0;
};

}  // namespace coppice::engine
