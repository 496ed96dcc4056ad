// From the cache and those who run to a request's CacheReport.
#pragma once

#include <cstdint>
#include <span>

#include "engine/cache_report.h"
#include "engine/sequence.h"
#include "kv/cache.h"

namespace coppice::engine {

/// `sequence` is about to compute [matched, ..) of its tokens, beside `running`.
/// prefill_speed: tokens per second; 0: not known.
CacheReport make_cache_report(const kv::Cache& cache, const Sequence& sequence, std::int32_t matched,
                              std::span<Sequence* const> running, double prefill_speed);

}  // namespace coppice::engine
