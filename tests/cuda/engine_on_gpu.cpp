// The engine over the executor on a GPU: requests with one sample and with several come, are cancelled and end, in a
// pool that is too small for all, in random order; then the same with a store in the host's memory, which takes what
// the pool gives up, and gives it back. All tokens must be those that the host draws from logits of one text alone, but
// for the few where rounding decides. Arguments: [OPERATIONS]. COPPICE_SEED=n replays a run.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "cuda/executor_program.h"
#include "engine/engine.h"
#include "engine/piece_names.h"
#include "support/drawn_again.h"
#include "tier/host_store.h"

namespace coppice {
namespace {

using Tokens = std::vector<kv::Token>;

/// Ends at a token of its own, now and then.
class SampledText final : public sampling::Generation {
 public:
  SampledText(sampling::Sampler sampler, kv::Token end, bool on_host)
      : sampler_(std::move(sampler)), end_(end), on_host_(on_host) {}
  sampling::Piece next(std::span<float> logits) override { return piece(sampler_.pick(logits).value()); }
  Needs needs() const override { return on_host_ ? Needs::kLogits : Needs::kToken; }
  sampling::SamplerSpec spec() override { return sampler_.spec(); }
  sampling::Piece take(kv::Token token, std::span<const float>) override {
    if (token < 0) throw sampling::Unsatisfiable("no token may come");
    sampler_.take(token);
    return piece(token);
  }
  sampling::Piece flush() override { return {.token = -1}; }

 private:
  sampling::Piece piece(kv::Token token) const {
    sampling::Piece p{.token = token};
    if (token == end_) p.finish = sampling::Finish::kStop;
    return p;
  }
  sampling::Sampler sampler_;
  kv::Token end_;
  bool on_host_;
};

struct Asked {
  Tokens prompt;
  std::shared_ptr<const sampling::SamplingParams> params;
  std::uint64_t seed = 0;
  std::vector<Tokens> texts;
  bool done = false;
  std::string message;
};

class Load {
 public:
  Load(executor::Executor& executor, executor::Executor& reference, std::uint64_t seed, bool with_store)
      : random_(seed),
        n_vocab_(executor.info().n_vocab),
        reference_(reference),
        executor_(executor),
        shared_(tokens(100)),
        engine_(kv::Cache({.block_size = executor.info().block_size,
                           .num_blocks = executor.info().num_blocks,
                           .bytes_per_block = executor.info().bytes_per_block,
                           .groups = executor.info().groups,
                           .max_extend = 256,
                           .model = executor.info().model_digest,
                           .layout = executor.info().layout}),
                executor, {.max_batch = 16, .step_tokens = 128, .context_length = 1024, .growth_room = false},
                [this](std::vector<engine::Event>&& events) {
                  for (const engine::Event& e : events) take(e);
                }) {
    for (int i = 0; i < (with_store ? 12 : 0); ++i) documents_.push_back(tokens(150 + random_() % 250));
    if (!with_store) return;
    const std::size_t bytes = engine::largest_piece(executor.info());
    memory_ = std::make_shared<tier::Buffers>(600, bytes);
    loads_ = std::make_shared<tier::Buffers>(20, bytes);
    known = executor.know_memory(memory_->memory());
    store_ = std::make_shared<tier::HostStore>(550);
    engine_.attach({.store = store_,
                    .loads = loads_,
                    .stores = memory_,
                    .model = {1},
                    .about = "test",
                    .load_always = true,
                    .lasting = false,
                    .all_evicted = true});
  }
  ~Load() {
    if (store_ == nullptr) return;
    store_->stop({});
    if (known) executor_.forget_memory(memory_->memory());
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  void operate() {
    const auto what = random_() % 10;
    if (what < 2 && asked_.size() < 40) return submit();
    if (what == 2 && random_() % 4 == 0 && !asked_.empty()) {
      ++cancelled;
      return engine_.cancel(std::next(asked_.begin(), static_cast<std::ptrdiff_t>(random_() % asked_.size()))->first);
    }
    step();
  }
  /// Until all requests have ended, or for so many steps. With nothing to compute the engine may still wait for the
  /// store.
  void finish(int steps) {
    for (int i = 0; i < steps && (more || !asked_.empty()); ++i) {
      step();
      if (!more && !asked_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void step() {
    more = engine_.step();
    std::erase_if(asked_, [&](auto& entry) {
      if (entry.second.done) check(entry.second);
      return entry.second.done;
    });
  }

  engine::Snapshot snapshot() const { return engine_.snapshot(); }
  std::string fault() const { return engine_.cache().check_integrity(); }
  test::DrawnAgain again;
  std::map<std::string, int> messages;  ///< of requests that failed
  int cancelled = 0, submitted = 0;
  bool more = true, known = false;

 private:
  Tokens tokens(std::size_t n) {
    Tokens all;
    for (std::size_t i = 0; i < n; ++i)
      all.push_back(static_cast<kv::Token>(random_() % static_cast<unsigned>(n_vocab_)));
    return all;
  }

  void submit() {
    ++submitted;
    Asked asked{.params = test::random_params(random_), .seed = random_()};
    if (random_() % 3 != 0)
      asked.prompt.assign(shared_.begin(), shared_.begin() + static_cast<std::ptrdiff_t>(random_() % 101));
    if (!documents_.empty() && random_() % 2 == 0) asked.prompt = documents_[random_() % documents_.size()];
    const Tokens own = tokens(1 + random_() % 60);
    asked.prompt.insert(asked.prompt.end(), own.begin(), own.end());
    const std::size_t n = random_() % 5 == 0 ? 3 : 1;
    asked.texts.resize(n);
    engine::Request request{
        .id = engine_.next_id(), .prompt = asked.prompt, .max_tokens = 5 + static_cast<int>(random_() % 80)};
    const auto end = random_() % 2 == 0 ? static_cast<kv::Token>(random_() % 40) : -5;
    for (std::size_t i = 0; i < n; ++i) {
      request.samples.push_back(std::make_unique<SampledText>(
          test::make_sampler(asked.params, asked.seed + i, asked.prompt, n_vocab_), end, random_() % 6 == 0));
    }
    asked_.emplace(request.id, std::move(asked));
    engine_.submit(std::move(request));
  }

  void take(const engine::Event& e) {
    Asked& asked = asked_.at(e.request);
    if (const auto* sampled = std::get_if<engine::Sampled>(&e.news); sampled != nullptr && sampled->piece.token >= 0)
      asked.texts[static_cast<std::size_t>(sampled->sample)].push_back(sampled->piece.token);
    asked.done = e.ended.has_value();
    if (const auto* refused = std::get_if<engine::Refused>(&e.news)) asked.message = refused->message;
  }

  void check(const Asked& asked) {
    if (!asked.message.empty()) ++messages[asked.message];
    for (std::size_t i = 0; i < asked.texts.size(); ++i) {
      again.check(reference_, asked.prompt, asked.texts[i],
                  test::make_sampler(asked.params, asked.seed + i, asked.prompt, n_vocab_));
    }
  }

  std::mt19937_64 random_;
  int n_vocab_;
  executor::Executor& reference_;
  executor::Executor& executor_;
  Tokens shared_;
  std::vector<Tokens> documents_;
  std::shared_ptr<tier::Buffers> memory_, loads_;
  std::shared_ptr<tier::HostStore> store_;
  std::map<engine::RequestId, Asked> asked_;
  engine::Engine engine_;
};

int run(int operations, std::uint64_t seed, bool with_store) {
  const std::string path = test::write_model(test::model_for_gpu());
  const auto load_with = [&](std::size_t kv_bytes) {
    return test::on_gpu(path, {.kv_bytes = kv_bytes, .max_rows = 128, .max_sequences = 16, .context = 1024});
  };
  const auto device = load_with(std::size_t{3} << 19), reference = load_with(std::size_t{8} << 20);
  Load load(*device, *reference, seed, with_store);
  std::string fault;
  for (int i = 0; i < operations && fault.empty(); ++i) {
    load.operate();
    if (i % 100 == 0) fault = load.fault();
  }
  load.finish(5000);
  if (fault.empty()) fault = load.fault();
  const engine::Snapshot s = load.snapshot();
  for (const auto& [message, n] : load.messages) std::printf("       %d requests: %s\n", n, message.c_str());
  const bool stored = !with_store || (load.known && s.tiers.loads > operations / 100 && s.tiers.unsound == 0 &&
                                      s.loaded_tokens > operations);
  if (with_store) {
    std::printf("       in the host's memory: %lld stored, %lld loads, %lld cut, %lld left, %lld tokens\n",
                static_cast<long long>(s.tiers.stored), static_cast<long long>(s.tiers.loads),
                static_cast<long long>(s.tiers.loads_cut), static_cast<long long>(s.tiers.left),
                static_cast<long long>(s.loaded_tokens));
  }
  const bool ok = fault.empty() && load.again.good() && load.again.tokens > operations / 2 && s.cache.in_use == 0 &&
                  s.preemptions > operations / 500 && load.messages.empty() && !load.more && stored;
  std::printf(
      "%-6s %d operations: %lld steps, %d requests (%lld finished, %lld cancelled), %lld preemptions; of %lld tokens "
      "%lld are others when the "
      "host draws; %d blocks in use at the end; %s\n",
      ok ? "ok" : "FAILED", operations, static_cast<long long>(s.steps), load.submitted,
      static_cast<long long>(s.requests_finished), static_cast<long long>(s.requests_cancelled),
      static_cast<long long>(s.preemptions), static_cast<long long>(load.again.tokens),
      static_cast<long long>(load.again.others), static_cast<int>(s.cache.in_use), fault.c_str());
  const executor::DeviceFigures d = device->device_figures();
  std::printf(
      "       %.2f s forward, %.2f s sampling, %.2f s of gaps in %.2f s of steps ahead; %.0f of %.0f MiB in use\n",
      d.forward_seconds, d.sampling_seconds, d.gap_seconds, d.ahead_seconds,
      static_cast<double>(d.memory_used) / 1048576, static_cast<double>(d.memory_bytes) / 1048576);
  return ok ? 0 : 1;
}

int run(int argc, char** argv) {
  const int operations = argc > 1 ? std::atoi(argv[1]) : 10000;
  const std::uint64_t seed = test::program_seed(26);
  return run(operations, seed, /*with_store=*/false) + run(operations, seed, /*with_store=*/true);
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_checks(argc, argv, [](int n, char** words) { return coppice::run(n, words); });
}
