// Publisher: how what a sequence computed enters the tree, step by step and at its end. Not thread safe.
//
// When memory runs out (std::bad_alloc): publish_step() leaves a sequence that can only end; publish_end() keeps less.
#pragma once

#include "kv/block_pool.h"
#include "kv/budget.h"
#include "kv/cache_config.h"
#include "kv/cache_sequence.h"
#include "kv/prefix_tree.h"
#include "kv/state_keeper.h"

namespace coppice::kv {

class Publisher {
 public:
  Publisher(const CacheConfig& config, BlockPool& pool, PrefixTree& tree, Budget& budget, StateKeeper& keeper)
      : config_(config), pool_(pool), tree_(tree), budget_(budget), keeper_(keeper) {}

  /// Tokens were computed, computed_len has grown: full blocks enter the tree (one that the tree has already is merged:
  /// the table is repointed to the tree's), a state stays if it is to be kept, so does a tail that others wait for, and
  /// blocks that left a window are dropped.
  void publish_step(CacheSequence& seq);

  /// The sequence is about to end: its partial tail and its state enter the tree.
  void publish_end(CacheSequence& seq) noexcept;

 private:
  void publish_full_blocks(CacheSequence& seq);
  bool publish_partial_tail(CacheSequence& seq) noexcept;
  void publish_wanted_tail(CacheSequence& seq) noexcept;
  void drop_passed_windows(CacheSequence& seq);

  const CacheConfig& config_;
  BlockPool& pool_;
  PrefixTree& tree_;
  Budget& budget_;
  StateKeeper& keeper_;
};

}  // namespace coppice::kv
