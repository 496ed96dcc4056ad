// The integrity check of a cache. Read-only.
#pragma once

#include <string>

#include "kv/cache_view.h"

namespace coppice::kv {

/// Recomputes every count from its holders and checks the invariants of cache.h, budget.h, prefix_tree.h, pin_table.h,
/// state_table.h, state_keeper.h and tree_node.h.
/// The first violation in words, or an empty string.
std::string check_integrity(const CacheView& cache);

}  // namespace coppice::kv
