#include "kv/cache_stats.h"

#include "kv/block_pool.h"
#include "kv/pin_table.h"
#include "kv/prefix_tree.h"
#include "kv/state_table.h"

namespace coppice::kv {

CacheStats stats_of(const CacheView& cache) {
  const BlockPool& pool = cache.pool;
  const std::size_t block_bytes = cache.config.bytes_per_block;
  return {.block_size = cache.config.block_size,
          .total = pool.total(),
          .free = pool.free(),
          .in_use = pool.in_use(),
          .cached = pool.cached(),
          .shared = pool.shared(),
          .max_refs = pool.max_users(),
          .spared = pool.references() - pool.in_use(),
          .reserved = cache.reserved,
          .pinned = cache.pins.blocks(),
          .pins = cache.pins.size(),
          .state_pages = cache.config.state_pages,
          .states_in_use = cache.states.in_use(),
          .states_cached = cache.states.cached(),
          .bytes_budget = pool.total() * block_bytes,
          .bytes_in_use = pool.in_use() * block_bytes,
          .bytes_peak = pool.peak_in_use() * block_bytes,
          .tree_nodes = cache.tree.node_count(),
          .sequences = static_cast<std::int64_t>(cache.sequences.size())};
}

}  // namespace coppice::kv
