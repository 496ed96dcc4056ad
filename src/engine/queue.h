// Queue: a key's sequences that wait, and which of them is next; whose turn among keys it is says key_shares.h. Not
// thread safe; the engine's thread owns it. Owns no sequence: a sequence leaves the queue before its request ends.
//
// The order is priority (lower first), then arrival. Two exceptions (docs/decisions.md, "Who is admitted next"):
//  - A sequence at least half of whose prompt lies in blocks that are in use counts as if it had come `patience`
//    requests earlier, so that those who share a prefix run together. One that was preempted counts so, too: none of
//    those gets ahead of it. So nobody is passed by `patience` or more later requests of its priority.
//  - Every (patience + 1)th admission goes to the first arrival, whatever the priorities. So a sequence with k earlier
//    ones in the queue is among the next (patience + 1) * (k + 1) admitted; earlier ones that are preempted and come
//    back count in k, and while it follows another one it waits for that.
// Requests that end before they were ever admitted give their arrival number to the next one.
// Whoever is next and lacks room holds up those behind. Followers (in_flight.h) are in the queue, but nobody's next.
//
// Memory: only add() throws. Whose prefix cannot be looked at for want of memory keeps its place by arrival.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <tuple>
#include <vector>

#include "engine/sequence.h"
#include "kv/cache.h"

namespace coppice::engine {

class Queue {
 public:
  /// looked_at: what all queues together have looked at in this step, in tokens; there is a limit to that.
  Queue(const kv::Cache& cache, int patience, std::size_t& looked_at)
      : cache_(cache), patience_(patience), looked_at_(looked_at) {
    candidates_.reserve(static_cast<std::size_t>(patience) + 1);
  }

  /// The caller makes it kReady. If memory runs out, nothing has changed.
  void add(Sequence& sequence) { waiting_.insert(&sequence); }
  /// Does nothing if it isn't there.
  void remove(Sequence& sequence) { waiting_.erase(&sequence); }
  /// remove(), because it runs now. Returns whether it got ahead of another one, by what it shares or as one preempted.
  bool admitted(Sequence& sequence);

  bool empty() const { return waiting_.empty(); }

  void begin_step() { candidates_.clear(); }
  /// The last in rank that f(const Sequence&) takes; nullptr: there is none.
  Sequence* last_of(auto&& f) const {
    const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const Sequence* s) { return f(*s); });
    return found == waiting_.rend() ? nullptr : *found;
  }
  /// Whose turn it is; nullptr: nobody's in this step. Whoever it names is admitted, follows or ends before the next
  /// call.
  Sequence* next();

 private:
  struct Candidate {
    Sequence* sequence = nullptr;
    std::int64_t counts_as = 0;  ///< OpenRequest::nth_of_key, less the patience of those ahead
    auto key() const {
      const OpenRequest& open = *sequence->request;
      return std::tuple(open.request.priority, counts_as, open.arrival, sequence->sample);
    }
  };
  Sequence* first_arrival();
  bool look();
  bool may_look_at(const Sequence& sequence);
  bool is_hot(const Sequence& sequence) const noexcept;

  const kv::Cache& cache_;
  int patience_;
  std::size_t& looked_at_;
  std::set<Sequence*, ByRank> waiting_;  ///< ready and following
  int out_of_turn_ = 0;                  ///< admissions since the last that had to go to the first arrival
  std::vector<Candidate> candidates_;    ///< the first of the queue, the next at the end
};

}  // namespace coppice::engine
