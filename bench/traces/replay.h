// Replays a trace against the real kv::Cache.
#pragma once

#include <cstdint>
#include <optional>

#include "trace.h"

namespace coppice::bench {

struct Replayed {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;  ///< of them, found at admission
  std::int64_t loaded_tokens = 0;  ///< of these, from the second tier
  std::int64_t stored_tokens = 0;  ///< that went there
  std::int64_t refused = 0;        ///< requests larger than the pool
  std::int64_t evictions = 0;
  double processor_seconds = 0;  ///< of the cache's own work
};

/// A second tier beside the pool (outside.h).
struct Beside {
  std::int32_t budget = 0;   ///< it holds so many times kTraceBlock tokens
  bool all_evicted = false;  ///< also what was used once goes there
};

/// One request after another: admit, extend and publish in steps of kTraceBlock tokens, finish. No answer is decoded:
/// the trace doesn't say what was answered. Each id becomes kTraceBlock tokens that no other id has. The pool holds
/// `budget` * kTraceBlock tokens, the running request's included.
Replayed replay(const Trace& trace, std::int32_t budget, int block_size, std::optional<Beside> beside = {});

}  // namespace coppice::bench
