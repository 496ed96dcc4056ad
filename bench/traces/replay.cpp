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

namespace coppice::bench {

namespace {

void append_tokens(std::int32_t id, std::vector<kv::Token>& prompt) {
  prompt.resize(prompt.size() + kTraceBlock);
  std::iota(prompt.end() - kTraceBlock, prompt.end(), id * kTraceBlock);
}

void run(kv::Cache& cache, std::span<const kv::Token> prompt, std::vector<kv::BlockOp>& copies, Replayed& sum) {
  const auto seq = cache.admit({.prompt = prompt, .ns = {}, .n_samples = 1});
  if (!seq) {
    ++sum.refused;
    return;
  }
  const auto cached = static_cast<std::size_t>(cache.lengths(*seq).cached_len);
  sum.cached_tokens += static_cast<std::int64_t>(cached);
  for (std::size_t i = cached; i < prompt.size(); i += kTraceBlock) {
    const std::size_t n = std::min<std::size_t>(kTraceBlock, prompt.size() - i);
    if (!cache.extend(*seq, static_cast<std::int32_t>(n), copies))
      throw std::logic_error("an admitted prompt found no room");
    cache.publish(*seq, prompt.subspan(i, n));
  }
  copies.clear();
  cache.finish(*seq);
}

}  // namespace

Replayed replay(const Trace& trace, std::int32_t budget, int block_size) {
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

  Replayed sum;
  std::vector<kv::Token> prompt;
  std::vector<kv::BlockOp> copies;
  std::clock_t work = 0;
  for (const TraceRequest& request : trace.requests) {
    prompt.clear();
    for (const std::int32_t id : request.ids) append_tokens(id, prompt);
    sum.prompt_tokens += static_cast<std::int64_t>(prompt.size());
    const std::clock_t begin = std::clock();
    run(cache, prompt, copies, sum);
    work += std::clock() - begin;
  }
  sum.evictions = cache.stats().evictions;
  sum.processor_seconds = static_cast<double>(work) / CLOCKS_PER_SEC;
  if (const std::string error = cache.check_integrity(); !error.empty()) throw std::logic_error(error);
  return sum;
}

}  // namespace coppice::bench
