// The figures of a cache that can be seen in it. Read-only.
#pragma once

#include "kv/cache.h"
#include "kv/cache_view.h"

namespace coppice::kv {

/// All but those that count what has happened: forks, evictions, blocks found again.
CacheStats stats_of(const CacheView& cache);

}  // namespace coppice::kv
