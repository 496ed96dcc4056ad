// CacheView: all parts of a cache, to look into it from outside its code. Read-only.
#pragma once

#include <cstdint>

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
  const PinTable& pins;
  std::int64_t reserved;
};

}  // namespace coppice::kv
