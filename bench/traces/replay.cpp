#include "replay.h"

#include <algorithm>
#include <ctime>
#include <limits>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "kv/cache.h"
#include "outside.h"

namespace coppice::bench {

namespace {

void append_tokens(std::int32_t id, std::vector<kv::Token>& prompt) {
  prompt.resize(prompt.size() + kTraceBlock);
  std::iota(prompt.end() - kTraceBlock, prompt.end(), id * kTraceBlock);
}

/// Loads what follows the match, as a request does that waits for it. Returns how many tokens were loaded.
std::int32_t load(kv::Cache& cache, kv::SeqId seq, std::span<const kv::Token> prompt, std::int32_t end) {
  const std::int32_t base = cache.lengths(seq).computed_len;
  if (!cache.await(seq, end)) return 0;
  const auto n = static_cast<std::size_t>(end - base);
  cache.arrived(seq, prompt.subspan(static_cast<std::size_t>(base), n));
  const auto bs = static_cast<std::size_t>(cache.config().block_size);
  cache.set_stored(cache.table(seq, 0).blocks.subspan(static_cast<std::size_t>(base) / bs, n / bs), true);
  return end - base;
}

void run(kv::Cache& cache, Outside* outside, std::span<const kv::Token> prompt, std::vector<kv::BlockOp>& copies,
         Replayed& sum) {
  const std::int32_t bs = cache.config().block_size;
  std::int32_t base = 0, end = 0;
  if (outside != nullptr) {
    base = cache.match(prompt, {}) / bs * bs;
    end = outside->reach(prompt, base);
  }
  kv::AdmitRequest request{.prompt = prompt, .ns = {}, .n_samples = 1};
  if (end > base) request.most_cached = static_cast<std::size_t>(base);
  const auto seq = cache.admit(request);
  if (!seq) {
    ++sum.refused;
    return;
  }
  const std::int32_t loaded = end > base ? load(cache, *seq, prompt, end) : 0;
  sum.loaded_tokens += loaded;
  const auto cached = static_cast<std::size_t>(cache.lengths(*seq).cached_len + loaded);
  if (outside != nullptr) outside->started(*seq, static_cast<std::int32_t>(cached));
  sum.cached_tokens += static_cast<std::int64_t>(cached);
  for (std::size_t i = cached; i < prompt.size(); i += kTraceBlock) {
    const std::size_t n = std::min<std::size_t>(kTraceBlock, prompt.size() - i);
    if (!cache.extend(*seq, static_cast<std::int32_t>(n), copies))
      throw std::logic_error("an admitted prompt found no room");
    cache.publish(*seq, prompt.subspan(i, n));
    if (outside != nullptr) outside->stepped();
  }
  copies.clear();
  cache.finish(*seq);
}

}  // namespace

Replayed replay(const Trace& trace, std::int32_t budget, int block_size, std::optional<Beside> beside) {
  const std::int64_t blocks = std::int64_t{budget} * (kTraceBlock / block_size);
  if (kTraceBlock % block_size != 0 || blocks >= std::numeric_limits<std::int32_t>::max() ||
      trace.distinct > std::numeric_limits<kv::Token>::max() / kTraceBlock) {
    throw std::invalid_argument("the trace can't be replayed with blocks of " + std::to_string(block_size));
  }
  kv::CacheConfig config;
  config.block_size = block_size;
  config.num_blocks = static_cast<std::int32_t>(blocks) + 1;
  config.groups.resize(1);
  config.max_extend = kTraceBlock;
  kv::Cache cache(std::move(config));
  std::optional<Outside> outside;
  if (beside) outside.emplace(cache, std::int64_t{beside->budget} * (kTraceBlock / block_size), beside->all_evicted);

  Replayed sum;
  std::vector<kv::Token> prompt;
  std::vector<kv::BlockOp> copies;
  std::clock_t work = 0;
  for (const TraceRequest& request : trace.requests) {
    prompt.clear();
    for (const std::int32_t id : request.ids) append_tokens(id, prompt);
    sum.prompt_tokens += static_cast<std::int64_t>(prompt.size());
    const std::clock_t begin = std::clock();
    run(cache, outside ? &*outside : nullptr, prompt, copies, sum);
    work += std::clock() - begin;
  }
  if (outside) sum.stored_tokens = outside->written() * block_size;
  sum.evictions = cache.stats().evictions;
  sum.processor_seconds = static_cast<double>(work) / CLOCKS_PER_SEC;
  if (const std::string error = cache.check_integrity(); !error.empty()) throw std::logic_error(error);
  return sum;
}

}  // namespace coppice::bench
