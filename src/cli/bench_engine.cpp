#include "cli/bench_engine.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cli/load.h"
#include "engine/engine.h"
#include "kv/cache.h"
#include "sampling/logit_scan.h"

namespace coppice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int32_t kContext = 1 << 15;
constexpr const char* kPoolTooSmall = "the KV pool is too small for this case: give more --kv-bytes";

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Greedy as the server's samplers are, endless, textless. The peers' benchmarks don't even look at the logits.
class Greedy final : public sampling::Generation {
 public:
  sampling::Piece next(std::span<float> logits) override {
    scan_.scan(logits);
    sampling::Piece piece;
    piece.token = scan_.argmax();
    return piece;
  }
  sampling::Piece flush() override { return {}; }

 private:
  sampling::LogitScan scan_;
};

/// An engine on an empty cache, and what its steps bring.
class Bench {
 public:
  Bench(executor::Executor& executor, int step_tokens, std::uint64_t seed)
      : n_vocab_(executor.info().n_vocab),
        random_(seed),
        engine_(kv::Cache(cache_config(executor.info(), step_tokens)), executor,
                {.max_batch = 32,
                 .step_tokens = step_tokens,
                 // Random tokens lose no meaning behind the context that the model was trained for.
                 .context_length = std::max(executor.info().context_length, kContext),
                 .max_waiting = 64},
                [this](std::vector<engine::Event>&& events) { take(std::move(events)); }) {}

  std::vector<kv::Token> random_tokens(int n) {
    std::uniform_int_distribution<kv::Token> any(0, n_vocab_ - 1);
    std::vector<kv::Token> tokens(static_cast<std::size_t>(n));
    for (kv::Token& t : tokens) t = any(random_);
    return tokens;
  }

  /// Queues a prompt; the answer has exactly `n_tokens` tokens.
  engine::RequestId submit(std::vector<kv::Token> prompt, int n_tokens) {
    engine::Request request;
    request.id = engine_.next_id();
    request.prompt = std::move(prompt);
    request.max_tokens = n_tokens;
    request.samples.push_back(std::make_unique<Greedy>());
    const engine::RequestId id = request.id;
    engine_.submit(std::move(request));
    return id;
  }

  /// Runs one step and returns its events. Throws when there was nothing to do, which is when streams waited for blocks
  /// until others had ended, or a request was refused.
  const std::vector<engine::Event>& step() {
    events_.clear();
    if (!engine_.step()) throw std::runtime_error(kPoolTooSmall);
    for (const engine::Event& event : events_) {
      if (event.refusal) throw std::runtime_error("a request of the benchmark was refused: " + event.message);
    }
    return events_;
  }

  engine::Snapshot snapshot() const { return engine_.snapshot(); }

 private:
  static kv::CacheConfig cache_config(const executor::ExecutorInfo& info, int step_tokens) {
    kv::CacheConfig config;
    config.block_size = info.block_size;
    config.num_blocks = info.num_blocks;
    config.bytes_per_block = info.bytes_per_block;
    config.groups = info.groups;
    config.max_extend = step_tokens;
    config.model = info.model_digest;
    config.layout = info.layout;
    return config;
  }

  void take(std::vector<engine::Event>&& events) {
    events_.insert(events_.end(), std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
  }

  std::int32_t n_vocab_;
  std::mt19937_64 random_;
  std::vector<engine::Event> events_;
  engine::Engine engine_;
};

/// REQUIRES: all streams write in each of these steps.
DecodeSpeed time_steps(Bench& bench, executor::Executor& executor, int streams, int steps) {
  const engine::Snapshot before = bench.snapshot();
  const executor::KvTraffic read_before = executor.kv_traffic();
  const auto start = Clock::now();
  for (int i = 0; i < steps; ++i) {
    if (bench.step().size() != static_cast<std::size_t>(streams)) throw std::runtime_error(kPoolTooSmall);
  }
  const double seconds = seconds_between(start, Clock::now());
  const engine::Snapshot after = bench.snapshot();
  const double step = after.step_seconds - before.step_seconds;
  const double model =
      after.forward_seconds - before.forward_seconds + after.sampling_seconds - before.sampling_seconds;
  const executor::KvTraffic read_after = executor.kv_traffic();
  const auto read = static_cast<double>(read_after.bytes_read - read_before.bytes_read);
  const auto unique = static_cast<double>(read_after.bytes_unique - read_before.bytes_unique);
  return {.tokens_per_s = streams * steps / seconds,
          .bookkeeping = (step - model) / step,
          .kv_bytes_per_step = read / steps,
          .kv_bytes_per_s = read / seconds,
          .kv_read_ratio = unique > 0 ? read / unique : 0};
}

/// Steps until all streams decode, then times `decode` steps.
DecodeSpeed time_decoding(Bench& bench, executor::Executor& executor, int streams, int decode) {
  while (bench.step().size() < static_cast<std::size_t>(streams)) {
  }
  return time_steps(bench, executor, streams, decode);
}

/// Streams that are prefilled first decode beside the others' prefill: room for that, so that none ends early.
int enough_tokens(int streams, int depth, int decode, int step_tokens) {
  return decode + 8 + streams * (4 * depth / step_tokens + 2);
}

}  // namespace

StreamSpeed bench_stream(executor::Executor& executor, int prefill, int decode, std::uint64_t seed) {
  Bench bench(executor, prefill, seed);
  bench.submit(bench.random_tokens(prefill), decode + 1);
  const auto start = Clock::now();
  if (bench.step().size() != 1) throw std::runtime_error("the prompt did not fit into one step");
  const auto prefilled = Clock::now();
  return {.prefill_tokens_per_s = prefill / seconds_between(start, prefilled),
          .decode = time_steps(bench, executor, 1, decode)};
}

DecodeSpeed bench_batch(executor::Executor& executor, int streams, int depth, int decode, int step_tokens,
                        std::uint64_t seed) {
  Bench bench(executor, step_tokens, seed);
  const int n_tokens = enough_tokens(streams, depth, decode, step_tokens);
  for (int i = 0; i < streams; ++i) bench.submit(bench.random_tokens(depth), n_tokens);
  return time_decoding(bench, executor, streams, decode);
}

DecodeSpeed bench_shared(executor::Executor& executor, int streams, int prefix, int decode, int step_tokens,
                         std::uint64_t seed) {
  constexpr int kOwn = 4;
  Bench bench(executor, step_tokens, seed);
  const std::vector<kv::Token> shared = bench.random_tokens(prefix);
  const int n_tokens = enough_tokens(streams, kOwn, decode, step_tokens);
  for (int i = 0; i < streams; ++i) {
    std::vector<kv::Token> prompt = shared;
    const std::vector<kv::Token> own = bench.random_tokens(kOwn);
    prompt.insert(prompt.end(), own.begin(), own.end());
    bench.submit(std::move(prompt), n_tokens);
  }
  return time_decoding(bench, executor, streams, decode);
}

StreamSpeed bench_depth(executor::Executor& executor, int depth, int prefill, int decode, std::uint64_t seed) {
  Bench bench(executor, prefill, seed);
  bench.submit(bench.random_tokens(depth + prefill), 1);
  for (int i = 0; i < depth / prefill; ++i) bench.step();
  const auto start = Clock::now();
  if (bench.step().size() != 1) throw std::runtime_error("the prompt did not end where it should");
  const auto prefilled = Clock::now();
  bench.submit(bench.random_tokens(depth), decode + 1);
  return {.prefill_tokens_per_s = prefill / seconds_between(start, prefilled),
          .decode = time_decoding(bench, executor, 1, decode)};
}

Gaps bench_gaps(executor::Executor& executor, int step_tokens, int long_prompt, std::uint64_t seed) {
  constexpr int kQuietSteps = 32;
  Bench bench(executor, step_tokens, seed);
  const engine::RequestId stream = bench.submit(bench.random_tokens(16), 1 << 20);
  bench.step();
  std::vector<double> quiet;
  std::vector<double> busy;
  auto last = Clock::now();
  const auto lap = [&] {
    const auto now = Clock::now();
    return 1000 * seconds_between(std::exchange(last, now), now);
  };
  for (int i = 0; i < kQuietSteps; ++i) {
    bench.step();
    quiet.push_back(lap());
  }
  const engine::RequestId prompt = bench.submit(bench.random_tokens(long_prompt), 1);
  for (bool done = false; !done;) {
    for (const engine::Event& event : bench.step()) {
      if (event.request == stream) busy.push_back(lap());
      if (event.request == prompt && event.done) done = true;
    }
  }
  std::sort(busy.begin(), busy.end());
  const auto p99 = static_cast<std::size_t>(0.99 * static_cast<double>(busy.size()));
  return {.quiet_median_ms = median(quiet),
          .median_ms = median(busy),
          .p99_ms = busy[std::min(p99, busy.size() - 1)],
          .count = static_cast<std::int64_t>(busy.size())};
}

}  // namespace coppice::cli
