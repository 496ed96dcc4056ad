// KeyShares: what each key has of the engine: its requests that wait (queue.h), and what its requests that run hold:
// places in the batch, blocks of the pool. Of a block that several sequences hold each holds a part.
//
// With k keys that have open requests a key's part is a k-th of the places, and of the blocks that no pin holds.
//  - The key that holds least is next. What it holds is the larger of its shares of the places and of the blocks; of
//    those that hold as much the one that was served longest ago is first.
//  - If it lacks places or blocks, the key that holds most of these gives: as long as it keeps as much as the other
//    gets, or, once for each request, has more than its part while the other stays within its own. So what was given is
//    not taken back.
//  - Who still lacks some waits, and those who hold more wait behind it. But if it asks for more than its part, those
//    who stay within theirs pass.
//
// With one key all that is nothing. Not thread safe; the engine's thread owns it. Whose a request is:
// Request::pin_payer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "engine/queue.h"
#include "engine/sequence.h"
#include "kv/cache.h"

namespace coppice::engine {

struct KeyShare {
  KeyShare(const kv::Cache& cache, int patience, std::size_t& looked_at) : queue(cache, patience, looked_at) {}

  Queue queue;
  std::size_t open = 0;      ///< requests
  std::uint64_t came = 0;    ///< OpenRequest::nth_of_key of the last to come
  int places = 0;            ///< that those hold that run
  double blocks = 0;         ///< that those hold that run, as of the last measure()
  bool waits = false;        ///< it is not next any more in this step
  std::uint64_t served = 0;  ///< its last admission, or when it came: in which order
};

class KeyShares {
 public:
  KeyShares(const kv::Cache& cache, int patience, int max_batch)
      : cache_(cache), patience_(patience), max_batch_(max_batch) {}

  /// A request comes: OpenRequest::share and nth_of_key are set. If memory runs out, nothing has changed.
  void come(OpenRequest& open);
  /// It ends, all its sequences have ended. Who never came: nothing happens.
  void leave(OpenRequest& open);
  std::size_t keys() const { return keys_.size(); }  ///< that have open requests
  KeyShare* find(std::string_view key);              ///< nullptr: it has none

  void begin_step();
  /// The blocks that keys hold are counted anew.
  void measure(std::span<Sequence* const> running);
  /// Whose turn it is, of those who have somebody in the queue and don't wait in this step.
  KeyShare* next();
  /// `sequence` can't be admitted in this step, for want of places or blocks.
  void hold_up(const Sequence& sequence);
  /// Whether it may be admitted although others are held up.
  bool may_pass(const Sequence& sequence) const;
  void admitted(KeyShare& share) { share.served = ++served_; }

  enum class What : std::uint8_t { kPlaces, kBlocks };
  /// The key that is to give for `sequence`; nullptr: nobody is.
  KeyShare* giver(const Sequence& sequence, What what);
  /// ... it gives `last`, if that is fair.
  bool may_give(const Sequence& last, const Sequence& sequence, What what) const;
  /// The key that holds most blocks.
  KeyShare& most_blocks();

 private:
  double blocks_to_share() const;
  double blocks_with(const Sequence& sequence) const;
  double holds(const KeyShare& share) const;
  bool within_part(const Sequence& sequence) const;

  const kv::Cache& cache_;
  int patience_, max_batch_;
  std::map<std::string, KeyShare, std::less<>> keys_;
  std::size_t looked_at_ = 0;  ///< by all queues in this step
  std::uint64_t served_ = 0;
  bool all_wait_ = false;     ///< in this step: somebody within its part is held up
  bool only_within_ = false;  ///< ... or somebody who asks for more
  double to_share_ = 0;       ///< blocks, in this step
};

}  // namespace coppice::engine
