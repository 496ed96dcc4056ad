// The cache that fits an executor.
#pragma once

#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::cli {

/// max_extend: the most tokens of one sequence in a step.
inline kv::CacheConfig cache_config(const executor::ExecutorInfo& info, std::int32_t max_extend, bool share = true) {
  kv::CacheConfig config;
  config.block_size = info.block_size;
  config.num_blocks = info.num_blocks;
  config.bytes_per_block = info.bytes_per_block;
  config.groups = info.groups;
  config.max_extend = max_extend;
  config.share = share;
  config.model = info.model_digest;
  config.layout = info.layout;
  return config;
}

}  // namespace coppice::cli
