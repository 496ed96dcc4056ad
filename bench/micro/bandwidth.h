// What the machine can read: the yardstick for kernels.
#pragma once

#include <vector>

#include "huge_buffer.h"

namespace coppice::bench {

/// Bytes per second of summing up the arena, for each repetition: what a kernel that only reads could reach.
/// REQUIRES: the arena is beyond_caches() (memory_check.h); a smaller one may be in a cache, and no row is judged by
/// it.
std::vector<double> read_bandwidth(const HugeBuffer& arena, int n_threads, int repetitions);

}  // namespace coppice::bench
