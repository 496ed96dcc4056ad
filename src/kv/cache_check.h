// Looking into a cache from outside its code: the integrity check, and a picture of the tree. Read-only.
#pragma once

#include <cstdint>
#include <string>

#include "kv/block_pool.h"
#include "kv/cache_config.h"
#include "kv/cache_sequence.h"
#include "kv/pin_table.h"
#include "kv/prefix_tree.h"
#include "kv/state_table.h"

namespace coppice::kv {

/// All parts of a cache.
struct CacheView {
  const CacheConfig& config;
  const BlockPool& pool;
  const StateTable& states;
  const PrefixTree& tree;
  const Sequences& sequences;
  const DetachedSets& detached;
  const PinTable& pins;
  std::int64_t reserved;
};

/// Recomputes every count from its holders and checks the invariants of cache.h, budget.h, prefix_tree.h, pin_table.h,
/// state_table.h, state_keeper.h and tree_node.h.
/// The first violation in words, or an empty string.
std::string check_integrity(const CacheView& cache);

/// The tree, one node a line, and the sequences.
std::string dump(const CacheView& cache);

}  // namespace coppice::kv
