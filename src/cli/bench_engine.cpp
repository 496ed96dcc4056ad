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

namespace coppice::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Greedy, endless, textless: what the peers' benchmarks do as well.
class Greedy final : public sampling::Generation {
 public:
  sampling::Piece next(std::span<float> logits) override {
    sampling::Piece piece;
    piece.token = static_cast<kv::Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    return piece;
  }
  sampling::Piece flush() override { return {}; }
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
                 .context_length = executor.info().context_length,
                 .max_waiting = 64},
                [this](std::vector<engine::Event>&& events) { take(std::move(events)); }) {}

  /// Queues a prompt of random tokens; the answer has exactly `n_tokens` tokens.
  engine::RequestId submit(int prompt_len, int n_tokens) {
    std::uniform_int_distribution<kv::Token> any(0, n_vocab_ - 1);
    engine::Request request;
    request.id = engine_.next_id();
    for (int i = 0; i < prompt_len; ++i) request.prompt.push_back(any(random_));
    request.max_tokens = n_tokens;
    request.samples.push_back(std::make_unique<Greedy>());
    const engine::RequestId id = request.id;
    engine_.submit(std::move(request));
    return id;
  }

  /// Runs one step and returns its events. Throws when there was nothing to do or a request was refused.
  const std::vector<engine::Event>& step() {
    events_.clear();
    if (!engine_.step()) throw std::runtime_error("the engine had nothing to do in mid-benchmark");
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

}  // namespace

StreamSpeed bench_stream(executor::Executor& executor, int prefill, int decode, std::uint64_t seed) {
  Bench bench(executor, prefill, seed);
  bench.submit(prefill, decode + 1);
  const auto start = Clock::now();
  if (bench.step().size() != 1) throw std::runtime_error("the prompt did not fit into one step");
  const auto prefilled = Clock::now();
  for (int i = 0; i < decode; ++i) bench.step();
  const auto end = Clock::now();
  return {.prefill_tokens_per_s = prefill / seconds_between(start, prefilled),
          .decode_tokens_per_s = decode / seconds_between(prefilled, end)};
}

BatchSpeed bench_batch(executor::Executor& executor, int streams, int depth, int decode, int step_tokens,
                       std::uint64_t seed) {
  Bench bench(executor, step_tokens, seed);
  // The first streams to be prefilled decode beside the others' prefill: room for that, so that none ends
  // early.
  for (int i = 0; i < streams; ++i) bench.submit(depth, decode + 2 * streams + 8);
  while (bench.step().size() < static_cast<std::size_t>(streams)) {
  }
  const engine::Snapshot before = bench.snapshot();
  const auto start = Clock::now();
  for (int i = 0; i < decode; ++i) {
    if (bench.step().size() != static_cast<std::size_t>(streams)) throw std::runtime_error("a stream ended too early");
  }
  const auto end = Clock::now();
  const engine::Snapshot after = bench.snapshot();
  const double step = after.step_seconds - before.step_seconds;
  const double model =
      after.forward_seconds - before.forward_seconds + after.sampling_seconds - before.sampling_seconds;
  return {.decode_tokens_per_s = streams * decode / seconds_between(start, end), .bookkeeping = (step - model) / step};
}

Gaps bench_gaps(executor::Executor& executor, int step_tokens, int long_prompt, std::uint64_t seed) {
  constexpr int kQuietSteps = 32;
  Bench bench(executor, step_tokens, seed);
  const engine::RequestId stream = bench.submit(16, 1 << 20);
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
  const engine::RequestId prompt = bench.submit(long_prompt, 1);
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
