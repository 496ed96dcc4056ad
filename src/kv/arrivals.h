// Arrivals: tokens of a running sequence whose keys and values are not computed but come from outside of the pool. They
// get their blocks all at once, loads fill these in any order (BlockOp::kLoad), and what is complete enters the tree
// like what is computed. Not thread safe.
//
// In groups with a window, blocks are only taken for what a sequence sees that goes on behind the last of these tokens.
// So between them and what was there before is a gap, which nobody sees once all are there.
#pragma once

#include <cstdint>

#include "kv/budget.h"
#include "kv/cache_config.h"
#include "kv/cache_sequence.h"
#include "kv/publisher.h"
#include "kv/state_keeper.h"

namespace coppice::kv {

class Arrivals {
 public:
  Arrivals(const CacheConfig& config, Budget& budget, StateKeeper& keeper, Publisher& publisher)
      : config_(config), budget_(budget), keeper_(keeper), publisher_(publisher) {}

  /// False, and nothing has changed: there are too few blocks. REQUIRES: Cache::await()'s.
  bool await(CacheSequence& seq, std::int32_t len);
  void arrived(CacheSequence& seq, TextView tokens);

 private:
  std::int32_t first_awaited(int group, std::size_t from, std::int32_t len) const;

  const CacheConfig& config_;
  Budget& budget_;
  StateKeeper& keeper_;
  Publisher& publisher_;
};

}  // namespace coppice::kv
