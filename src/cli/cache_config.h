// The cache that fits an executor.
#pragma once

#include "engine/steps_in_hand.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::cli {

/// chunk: the most tokens of one sequence in a step.
inline kv::CacheConfig cache_config(const executor::Executor& executor, std::int32_t chunk, bool share = true) {
  const executor::ExecutorInfo& info = executor.info();
  kv::CacheConfig config;
  config.block_size = info.block_size;
  config.num_blocks = info.num_blocks;
  config.bytes_per_block = info.bytes_per_block;
  config.groups = info.groups;
  const bool has_states = kv::n_table_groups(info.groups) < info.groups.size();
  config.max_extend = chunk * engine::steps_in_hand(has_states, executor.depth());
  config.share = share;
  config.model = info.model_digest;
  config.layout = info.layout;
  return config;
}

}  // namespace coppice::cli
