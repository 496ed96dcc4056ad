// Cost of the cache itself: matching, admission, publishing with eviction, on trees of 10^4 to 10^6 blocks.
// Goals: over 100,000,000 matched and 20,000,000 inserted tokens/s; cost doesn't grow with the tree.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <vector>

#include "kv/cache.h"

namespace {

using coppice::kv::BlockOp;
using coppice::kv::Cache;
using coppice::kv::CacheConfig;
using coppice::kv::Token;

constexpr std::size_t kChunk = 512;
constexpr std::size_t kSystemPrompt = 1500;  // ends inside a block: every user is a child of one node
constexpr std::size_t kUserTokens = 6692;
constexpr std::size_t kLongPrompt = 32'768;
constexpr std::size_t kModelBytes = std::size_t{128} << 20;  // more than a processor's caches hold

/// Of this thread.
double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<Token> random_tokens(std::size_t n, std::mt19937_64& rng) {
  std::vector<Token> tokens(n);
  for (Token& t : tokens) t = static_cast<Token>(rng() % 49152);
  return tokens;
}

/// Prefills what isn't cached and finishes. Returns the tokens inserted.
std::size_t run_prompt(Cache& cache, std::span<const Token> prompt, std::vector<BlockOp>& copies) {
  const auto seq = cache.admit({prompt, {}, 1});
  if (!seq) throw std::runtime_error("the pool is too small for this benchmark");
  const auto cached = static_cast<std::size_t>(cache.lengths(*seq).len);
  for (std::size_t i = cached; i < prompt.size(); i += kChunk) {
    const auto chunk = prompt.subspan(i, std::min(kChunk, prompt.size() - i));
    if (!cache.extend(*seq, static_cast<std::int32_t>(chunk.size()), copies)) throw std::runtime_error("out of blocks");
    cache.publish(*seq, chunk);
  }
  copies.clear();
  cache.finish(*seq);
  return prompt.size() - cached;
}

/// A tree filled to the brim with users behind one system prompt, so that every insertion evicts.
struct FullTree {
  explicit FullTree(std::int64_t blocks, std::size_t user_tokens = kUserTokens)
      : rng(1), system(random_tokens(kSystemPrompt, rng)), user_tokens(user_tokens) {
    CacheConfig config;
    config.num_blocks = static_cast<std::int32_t>(blocks) + 1;
    config.groups.resize(1);
    config.max_extend = kChunk;
    cache = std::make_unique<Cache>(std::move(config));
    while (cache->stats().evictions == 0) insert();
  }
  std::vector<Token> next_prompt() {
    std::vector<Token> prompt = system;
    const auto user = random_tokens(user_tokens, rng);
    prompt.insert(prompt.end(), user.begin(), user.end());
    return prompt;
  }
  std::size_t insert() { return run_prompt(*cache, next_prompt(), copies); }

  std::mt19937_64 rng;
  std::vector<Token> system;
  std::size_t user_tokens;
  std::unique_ptr<Cache> cache;
  std::vector<BlockOp> copies;
};

void insert_with_eviction(benchmark::State& state) {
  FullTree tree(state.range(0));
  std::int64_t tokens = 0;
  for (auto _ : state) tokens += static_cast<std::int64_t>(tree.insert());
  state.SetItemsProcessed(tokens);
}
BENCHMARK(insert_with_eviction)->Arg(10'000)->Arg(100'000)->Arg(1'000'000)->Unit(benchmark::kMicrosecond);

/// The prompts that fill the tree, in random order, in processor time. Between two of them something else takes the
/// processor's caches, as a model's step does: so none of the tree is there, whatever its size. The prompt is: it was
/// just tokenized.
void match_32k(benchmark::State& state) {
  FullTree tree(state.range(0), kLongPrompt - kSystemPrompt);
  // All that fit but for two: what the last ones evict is old.
  const auto n = static_cast<std::size_t>(state.range(0)) / ((kLongPrompt - kSystemPrompt) / 32 + 1) - 2;
  std::vector<std::vector<Token>> prompts;
  while (prompts.size() < n) run_prompt(*tree.cache, prompts.emplace_back(tree.next_prompt()), tree.copies);
  std::vector<Token> prompt(kLongPrompt);
  std::vector<std::uint64_t> model(kModelBytes / sizeof(std::uint64_t));
  std::int64_t tokens = 0;
  for (auto _ : state) {
    for (std::uint64_t& weights : model) ++weights;
    benchmark::ClobberMemory();
    prompt = prompts[tree.rng() % n];
    const double start = processor_seconds();
    const std::int32_t length = tree.cache->match(prompt, {});
    state.SetIterationTime(processor_seconds() - start);
    if (static_cast<std::size_t>(length) != kLongPrompt) return state.SkipWithError("a prompt is not in the tree");
    tokens += length;
  }
  state.SetItemsProcessed(tokens);
}
BENCHMARK(match_32k)
    ->Arg(10'000)
    ->Arg(100'000)
    ->Arg(1'000'000)
    ->Unit(benchmark::kMicrosecond)
    ->UseManualTime()
    ->Iterations(200);

/// One prompt again and again: the least it can take.
void match_32k_hot(benchmark::State& state) {
  FullTree tree(state.range(0));
  const auto prompt = random_tokens(kLongPrompt, tree.rng);
  run_prompt(*tree.cache, prompt, tree.copies);
  for (auto _ : state) benchmark::DoNotOptimize(tree.cache->match(prompt, {}));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(prompt.size()));
}
BENCHMARK(match_32k_hot)->Arg(10'000)->Arg(1'000'000)->Unit(benchmark::kMicrosecond);

void admit_and_finish_32k(benchmark::State& state) {
  FullTree tree(state.range(0));
  const auto prompt = random_tokens(kLongPrompt, tree.rng);
  run_prompt(*tree.cache, prompt, tree.copies);
  for (auto _ : state) {
    const auto seq = tree.cache->admit({prompt, {}, 1});
    tree.cache->finish(seq.value());
  }
}
BENCHMARK(admit_and_finish_32k)->Arg(10'000)->Arg(1'000'000)->Unit(benchmark::kMicrosecond);

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 2;  // it says that none was chosen
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kv_bench: %s\n", error.what());
    return 2;
  }
}
