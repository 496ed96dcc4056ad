// The cache that fits an executor.
#pragma once

#include <algorithm>

#include "engine/steps_in_hand.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::cli {

/// Of a CPU's step in which nothing decodes, at most (engine/step_budget.h). Many threads gain by it, 16 some 11 to 18
/// %; two lose as much, since so many rows leave their caches.
inline constexpr int kAloneTokens = 2048, kAloneTokensPerThread = 128;

inline int alone_tokens(const executor::Executor& executor) {
  return std::min(kAloneTokens, kAloneTokensPerThread * executor.thread_figures().most);
}

/// The most tokens of one sequence in a step of `most`. More than a window would take more of the pool for each
/// sequence.
inline std::int32_t chunk_tokens(const executor::ExecutorInfo& info, std::int32_t step_tokens, std::int32_t most) {
  for (const kv::GroupSpec& group : info.groups)
    if (group.window > 0) most = std::min(most, group.window);
  return std::max(most, step_tokens);
}

/// chunk: the most tokens of one sequence in a step. stored: what is cached outlives the pool.
inline kv::CacheConfig cache_config(const executor::Executor& executor, std::int32_t chunk, bool share = true,
                                    bool stored = false) {
  const executor::ExecutorInfo& info = executor.info();
  kv::CacheConfig config;
  config.block_size = info.block_size;
  config.num_blocks = info.num_blocks;
  config.bytes_per_block = info.bytes_per_block;
  config.groups = info.groups;
  const bool has_states = kv::n_table_groups(info.groups) < info.groups.size();
  config.max_extend = chunk * engine::steps_in_hand(has_states, executor.depth());
  config.share = share;
  config.keep_ends = stored;
  config.model = info.model_digest;
  config.layout = info.layout;
  return config;
}

}  // namespace coppice::cli
