#include "cli/bench_engine.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cli/cache_config.h"
#include "engine/engine.h"
#include "kv/cache.h"
#include "sampling/logit_scan.h"

namespace coppice::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int32_t kContext = 1 << 15;
constexpr int kStepTokens = 512;
constexpr int kDecode = 64;
constexpr int kLongPrompt = 4000;
constexpr const char* kPoolTooSmall = "the KV pool is too small for this case: give more --kv-bytes";

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Greedy as the server's samplers are, endless, textless. The peers' benchmarks don't even look at the logits.
class Greedy final : public sampling::Generation {
 public:
  explicit Greedy(std::int32_t n_vocab) : n_vocab_(n_vocab) {}
  sampling::Piece next(std::span<float> logits) override {
    scan_.scan(logits);
    sampling::Piece piece;
    piece.token = scan_.argmax();
    return piece;
  }
  Needs needs() const override { return Needs::kToken; }
  sampling::SamplerSpec spec() override { return {.temperature = 0, .n_vocab = n_vocab_}; }
  sampling::Piece take(kv::Token token, std::span<const float> /*logits*/) override { return {.token = token}; }
  sampling::Piece flush() override { return {}; }

 private:
  std::int32_t n_vocab_;
  sampling::LogitScan scan_;
};

/// An engine on an empty cache, and what its steps bring.
class Bench {
 public:
  Bench(executor::Executor& executor, std::uint64_t seed, int step_tokens = kStepTokens, int alone_tokens = 0)
      : n_vocab_(executor.info().n_vocab),
        random_(seed),
        engine_(kv::Cache(cache_config(executor, chunk_tokens(executor.info(), step_tokens, alone_tokens))), executor,
                {.max_batch = 32,
                 .step_tokens = step_tokens,
                 .alone_tokens = alone_tokens,
                 // Random tokens lose no meaning behind the context that the model was trained for.
                 .context_length = std::max(executor.info().context_length, kContext),
                 .max_waiting = 64},
                [this](std::vector<engine::Event>&& events) { events_ = std::move(events); }) {}

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
    request.samples.push_back(std::make_unique<Greedy>(n_vocab_));
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
      if (const auto* refused = std::get_if<engine::Refused>(&event.news))
        throw std::runtime_error("a request of the benchmark was refused: " + refused->message);
    }
    return events_;
  }

  engine::Snapshot snapshot() const { return engine_.snapshot(); }

 private:
  std::int32_t n_vocab_;
  std::mt19937_64 random_;
  std::vector<engine::Event> events_;
  engine::Engine engine_;
};

/// Tokens a second of a prefill behind `depth` tokens of the same prompt, however many steps it takes: recurrent layers
/// keep states, and a step ends at each. With a step ahead, the engine has submitted the next one when a step's answer
/// is there: it then has the device to itself, so the clock starts there.
double time_prefill(executor::Executor& executor, int depth, std::uint64_t seed) {
  Bench bench(executor, seed);
  bench.submit(bench.random_tokens(depth + kStepTokens), 1);
  while (bench.snapshot().computed_tokens < depth) bench.step();
  const auto timed = static_cast<double>(depth + kStepTokens - bench.snapshot().computed_tokens);
  const auto start = Clock::now();
  while (bench.step().empty()) {
  }
  return timed / seconds_between(start, Clock::now());
}

/// Tokens a second of a whole prompt of so many tokens.
double time_prompt(executor::Executor& executor, int tokens, std::uint64_t seed, int step_tokens) {
  Bench bench(executor, seed, step_tokens > 0 ? step_tokens : kStepTokens,
              step_tokens > 0 ? 0 : alone_tokens(executor));
  bench.submit(bench.random_tokens(tokens), 1);
  const auto start = Clock::now();
  while (bench.step().empty()) {
  }
  return tokens / seconds_between(start, Clock::now());
}

void start_streams(Bench& bench, const EngineCase& what) {
  const std::vector<kv::Token> shared = bench.random_tokens(what.shared);
  // Streams that are prefilled first decode beside the others' prefill: room for that, so that none ends early.
  const int n_tokens = kDecode + 8 + what.streams * (4 * what.own / kStepTokens + 2);
  for (int i = 0; i < what.streams; ++i) {
    std::vector<kv::Token> prompt = shared;
    const std::vector<kv::Token> own = bench.random_tokens(what.own);
    prompt.insert(prompt.end(), own.begin(), own.end());
    bench.submit(std::move(prompt), n_tokens);
  }
}

/// Steps until all streams write, then times kDecode steps.
void time_decoding(const EngineCase& what, executor::Executor& executor, std::uint64_t seed, Figures& figures) {
  Bench bench(executor, seed);
  start_streams(bench, what);
  const auto streams = static_cast<std::size_t>(what.streams);
  while (bench.step().size() < streams) {
  }
  const engine::Snapshot before = bench.snapshot();
  const executor::KvTraffic read_before = executor.kv_traffic();
  const auto start = Clock::now();
  for (int i = 0; i < kDecode; ++i) {
    if (bench.step().size() != streams) throw std::runtime_error(kPoolTooSmall);
  }
  const double seconds = seconds_between(start, Clock::now());
  const engine::Snapshot after = bench.snapshot();
  const double step = after.step_seconds - before.step_seconds;
  const double model =
      after.forward_seconds - before.forward_seconds + after.sampling_seconds - before.sampling_seconds;
  const executor::KvTraffic read_after = executor.kv_traffic();
  const auto read = static_cast<double>(read_after.bytes_read - read_before.bytes_read);
  const auto unique = static_cast<double>(read_after.bytes_unique - read_before.bytes_unique);
  figures.insert(figures.end(), {{"decode_tokens_per_s", what.streams * kDecode / seconds},
                                 {"bookkeeping", (step - model) / step},
                                 {"kv_mib_per_step", read / kDecode / (1 << 20)},
                                 {"kv_gb_per_s", read / seconds / 1e9},
                                 {"kv_read_ratio", unique > 0 ? read / unique : 0}});
}

/// A stream's gaps between tokens, before a long prompt comes and while it prefills.
Figures time_gaps(executor::Executor& executor, std::uint64_t seed) {
  constexpr int kQuietSteps = 32;
  Bench bench(executor, seed);
  const engine::RequestId stream = bench.submit(bench.random_tokens(16), 1 << 20);
  bench.step();
  std::vector<double> quiet, busy;
  auto last = Clock::now();
  const auto lap = [&] {
    const auto now = Clock::now();
    return 1000 * seconds_between(std::exchange(last, now), now);
  };
  for (int i = 0; i < kQuietSteps; ++i) {
    bench.step();
    quiet.push_back(lap());
  }
  const engine::RequestId prompt = bench.submit(bench.random_tokens(kLongPrompt), 1);
  for (bool done = false; !done;) {
    for (const engine::Event& event : bench.step()) {
      if (event.request == stream) busy.push_back(lap());
      if (event.request == prompt && event.ended) done = true;
    }
  }
  std::ranges::sort(busy);
  const auto p99 = static_cast<std::size_t>(0.99 * static_cast<double>(busy.size()));
  return {{"quiet_median_ms", median(quiet)},
          {"median_ms", median(busy)},
          {"p99_ms", busy[std::min(p99, busy.size() - 1)]},
          {"count", static_cast<double>(busy.size())}};
}

}  // namespace

std::span<const EngineCase> engine_cases() {
  static constexpr EngineCase kCases[] = {
      {.name = "stream", .meaning = "one stream at depth 512", .prefill_depth = 0, .streams = 1, .own = 512},
      {.name = "depth", .meaning = "one at depth 2,048", .prefill_depth = 2048, .streams = 1, .own = 2048},
      {.name = "deep", .meaning = "one at depth 16,384", .prefill_depth = 16'384, .streams = 1, .own = 16'384},
      {.name = "prompt", .meaning = "a prompt of 4,000", .prompt = kLongPrompt},
      {.name = "document", .meaning = "a prompt of 16,384", .prompt = 16'384},
      {.name = "batch", .meaning = "eight unrelated ones at depth 400", .streams = 8, .own = 400},
      {.name = "sixteen", .meaning = "sixteen unrelated ones at depth 200", .streams = 16, .own = 200},
      {.name = "deep-batch", .meaning = "eight unrelated ones at depth 1,500", .streams = 8, .own = 1500},
      {.name = "shared", .meaning = "sixteen on one prefix of 2,048 tokens", .streams = 16, .shared = 2048, .own = 4},
      {.name = "gaps", .meaning = "one beside the prefill of 4,000 tokens"},
  };
  return kCases;
}

Figures run_case(const EngineCase& what, executor::Executor& executor, std::uint64_t seed, int step_tokens) {
  if (what.prompt > 0) return {{"prefill_tokens_per_s", time_prompt(executor, what.prompt, seed, step_tokens)}};
  if (what.streams == 0) return time_gaps(executor, seed);
  Figures figures;
  if (what.prefill_depth >= 0) {
    figures.emplace_back("prefill_tokens_per_s", time_prefill(executor, what.prefill_depth, seed));
  }
  time_decoding(what, executor, seed, figures);
  return figures;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace coppice::cli
