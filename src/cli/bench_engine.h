// The loads of `coppice bench`: cache, scheduler and executor as the server uses them, without HTTP and without a
// tokenizer. Steps are driven and timed one by one on the caller's thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/executor.h"

namespace coppice::cli {

/// Streams that decode after a prompt, and a prefill; as data.
struct EngineCase {
  std::string_view name;
  std::string_view meaning;
  int prefill_depth = -1;  ///< a prefill of 512 tokens behind so many is timed, a multiple of 512; -1: none
  int prompt = 0;          ///< a prompt of so many is timed, in steps as the server's; 0: none
  /// That decode 64 tokens each, all at the same time; 0 and no prompt: the case is a load of its own ("gaps").
  int streams = 0;
  int shared = 0;  ///< tokens that all their prompts begin with
  int own = 0;     ///< tokens of each prompt behind these
};

std::span<const EngineCase> engine_cases();

/// Names and values.
using Figures = std::vector<std::pair<std::string, double>>;

/// Runs a case from an empty cache, on random prompts, so that nothing is shared by accident. Throws std::runtime_error
/// when the KV pool is too small.
///   prefill_tokens_per_s   of the prefill, or the prompt
///   decode_tokens_per_s    of all streams together
///   bookkeeping            share of the decode steps' time outside of the model and of sampling
///   kv_mib_per_step        keys and values that attention loads in a decode step
///   kv_gb_per_s            the same over the whole step's time, in which weights are read, too
///   kv_read_ratio          the same over what the rows see, each byte once; 0: the backend doesn't know
///   quiet_median_ms, median_ms, p99_ms   ("gaps") between a stream's tokens, before and while a long prompt prefills
///   count                  ("gaps") of the latter
/// step_tokens: of a prompt that is timed as a whole; 0: as the server does by itself.
Figures run_case(const EngineCase& what, executor::Executor& executor, std::uint64_t seed, int step_tokens = 0);

/// The middle value, or the mean of the middle two. REQUIRES: not empty.
double median(std::vector<double> values);

}  // namespace coppice::cli
