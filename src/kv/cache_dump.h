// A cache in words, for messages of failed tests. Read-only.
#pragma once

#include <string>

#include "kv/cache_view.h"

namespace coppice::kv {

/// The tree, one node a line, and the sequences.
std::string dump(const CacheView& cache);

}  // namespace coppice::kv
