// The benchmarks that run inside this process: cache, scheduler and executor as the server uses them, without
// HTTP and without a tokenizer. Steps are driven and timed one by one on the caller's thread.
//
// Each function starts from an empty cache and uses random prompts, so that nothing is shared by accident.
#pragma once

#include <cstdint>

#include "executor/executor.h"

namespace coppice::cli {

/// Steps in which all streams write a token.
struct DecodeSpeed {
  double tokens_per_s = 0;
  double bookkeeping = 0;        ///< share of the steps' time outside of forward and sampling [E5]
  double kv_bytes_per_step = 0;  ///< keys and values that attention loads [A4]
  double kv_bytes_per_s = 0;     ///< the same over the whole step's time, in which weights are read, too
  double kv_read_ratio = 0;      ///< the same over what the rows see, each byte once; 0: the backend doesn't know
};

/// One stream: its whole prompt in the first step, then one token a step.
struct StreamSpeed {
  double prefill_tokens_per_s = 0;
  DecodeSpeed decode;
};

/// The times between a running stream's tokens, milliseconds.
struct Gaps {
  double quiet_median_ms = 0;  ///< before the long prompt came
  double median_ms = 0;        ///< while the long prompt prefills
  double p99_ms = 0;
  std::int64_t count = 0;
};

StreamSpeed bench_stream(executor::Executor& executor, int prefill, int decode, std::uint64_t seed);
/// Streams that share nothing.
DecodeSpeed bench_batch(executor::Executor& executor, int streams, int depth, int decode, int step_tokens,
                        std::uint64_t seed);
/// Streams that stand on one prefix, each with a few tokens of its own.
DecodeSpeed bench_shared(executor::Executor& executor, int streams, int prefix, int decode, int step_tokens,
                         std::uint64_t seed);
/// The last `prefill` tokens of a prompt of depth + prefill, and one stream's decoding behind a prompt of `depth`.
/// REQUIRES: depth is a multiple of prefill.
StreamSpeed bench_depth(executor::Executor& executor, int depth, int prefill, int decode, std::uint64_t seed);
Gaps bench_gaps(executor::Executor& executor, int step_tokens, int long_prompt, std::uint64_t seed);

}  // namespace coppice::cli
