// The contract of an executor that works ahead (tests/engine/contract_test.cpp), over the GPU: each step is planned and submitted before
// the last one's tokens are known, sequences come, go and come back, and batches are refused. All tokens must be those that the host draws from
// logits of one text alone, but for the few where rounding decides; the same order of events gives the same tokens, bit by bit.
// Arguments: [STEPS]; or --time MODEL SHARED SEQUENCES...: what a step of so many sequences behind a shared prompt takes, with steps ahead and
// without, and the share of it without a kernel; or --lose: what a lost GPU is answered with, and --full: one whose memory
// is taken. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "cuda/run_program.h"
#include "cuda/tiny_model.h"
#include "executor/cuda/cuda_executor.h"
#include "executor/cuda/operators.h"
#include "kv/cache.h"
#include "support/cuda_step.h"
#include "support/drawn_again.h"

namespace coppice {
namespace {

using executor::Executor;
using Tokens = std::vector<kv::Token>;

std::unique_ptr<Executor> on_gpu(const std::string& path, std::size_t kv_bytes) {
  executor::cuda::CudaOptions o;
  o.kv_bytes = kv_bytes;
  o.max_sequences = 64;
  o.context = 16384;
  return executor::cuda::load_cuda_executor(model::load_model(path), o, {});
}

kv::CacheConfig cache_config(const executor::ExecutorInfo& info, std::int32_t max_extend) {
  return {.block_size = info.block_size,
          .num_blocks = info.num_blocks,
          .bytes_per_block = info.bytes_per_block,
          .groups = info.groups,
          .max_extend = max_extend,
          .model = info.model_digest,
          .layout = info.layout};
}

struct Talk {
  Tokens prompt, out;
  std::shared_ptr<const sampling::SamplingParams> params;
  std::uint64_t seed = 0;
  std::optional<sampling::Sampler> sampler;
  std::optional<kv::SeqId> seq;
  std::int32_t planned = 0;  ///< tokens that have a slot
  int draw = -1;  ///< the sample of the last step that gives its next token; -1: that is known, or not asked for

  Tokens tokens() const {
    Tokens all = prompt;
    all.insert(all.end(), out.begin(), out.end());
    return all;
  }
};

Tokens random_tokens(std::mt19937_64& random, std::size_t n, int n_vocab) {
  Tokens tokens;
  for (std::size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<kv::Token>(random() % static_cast<unsigned>(n_vocab)));
  return tokens;
}

struct Load {
  int talks = 7, chunk = 24;
  std::size_t shared = 70, own = 40, longest = 90;
  unsigned leaves_in = 12;  ///< one in so many steps; 0: nobody leaves
  bool ahead = true, greedy = false;
};

class Caller {
 public:
  Caller(Executor& device, const Load& load, std::uint64_t seed)
      : random_(seed),
        load_(load),
        device_(device),
        n_vocab_(device.info().n_vocab),
        cache_(cache_config(device.info(), 2 * load.chunk)),
        shared_(random_tokens(random_, load.shared, n_vocab_)) {
    add(load.talks);
  }

  void add(int talks) {
    for (int i = 0; i < talks; ++i) begin(*talks_.emplace_back(std::make_unique<Talk>()));
  }

  void step() {
    Planned next = plan();
    if (load_.leaves_in > 0 && random_() % 10 == 0) refuse();
    next.step = device_.submit(batch_);
    if (last_) collect();
    std::vector<sampling::SamplerSpec> specs;
    for (const Part& part : next.parts) {
      if (!part.sampled) continue;
      specs.push_back(part.talk != nullptr ? part.talk->sampler->spec() : sampling::SamplerSpec{});
    }
    device_.sample(*next.step, specs);
    last_ = std::move(next);
    if (!load_.ahead) collect();
  }
  void end() {
    if (last_) collect();
    for (const auto& talk : talks_) finish(*talk);
  }

  std::vector<Tokens> texts;  ///< that have ended
  int left = 0, drawn = 0, refused = 0;
  test::DrawnAgain again;
  Executor* reference = nullptr;
  std::string fault() const { return cache_.check_integrity(); }

 private:
  static constexpr int kMostRows = 512;
  struct Part {
    Talk* talk = nullptr;  ///< null: it has left
    std::int32_t first = 0, n = 0;
    bool sampled = false;
  };
  struct Planned {
    std::optional<executor::Step> step;
    std::vector<Part> parts;
  };

  Planned plan() {
    batch_ = {};
    Planned next;
    int samples = 0;
    for (const auto& talk : talks_) {
      if (talk->seq && load_.leaves_in > 0 && random_() % load_.leaves_in == 0) leave(*talk);
      if (talk->out.size() >= load_.longest) finish(*talk);
      if (!talk->seq) come(*talk);
      const Tokens tokens = talk->tokens();
      const auto known = static_cast<std::int32_t>(tokens.size()) - talk->planned;
      const std::int32_t n = std::min({known > 0         ? known
                                       : talk->draw >= 0 ? 1
                                                         : 0,
                                       load_.chunk, kMostRows - batch_.n_rows()});
      if (n == 0) continue;
      if (!cache_.extend(*talk->seq, n, batch_.block_ops)) throw std::runtime_error("the pool is too small");
      if (known > 0) {
        batch_.rows.insert(batch_.rows.end(), tokens.begin() + talk->planned, tokens.begin() + talk->planned + n);
      } else {
        batch_.rows.push_back(executor::RowSource::drawn(talk->draw));
        ++drawn;
      }
      const bool sampled = n >= known;
      next.parts.push_back({talk.get(), talk->planned, n, sampled});
      talk->draw = sampled ? samples++ : -1;
      talk->planned += n;
      if (sampled) batch_.sample_rows.push_back(batch_.n_rows() - 1);
    }
    for (const Part& part : next.parts) {
      executor::BatchSequence s{.n_rows = part.n, .first_position = part.first};
      for (int g = 0; g < cache_.config().n_groups(); ++g) s.tables.push_back(cache_.table(*part.talk->seq, g));
      batch_.sequences.push_back(std::move(s));
    }
    return next;
  }

  /// What the executor doesn't take leaves the step under way as it is.
  void refuse() {
    executor::Batch bad = batch_;
    bad.rows.back() = n_vocab_;
    try {
      device_.submit(bad);
    } catch (const executor::StepError&) {
      ++refused;
    }
  }

  void collect() {
    const Planned step = *std::exchange(last_, std::nullopt);
    const executor::Result result = device_.wait(*step.step);
    std::size_t sample = 0;
    for (const Part& part : step.parts) {
      const kv::Token token = part.sampled ? result.tokens[sample++] : -1;
      if (part.talk == nullptr) continue;
      const Tokens tokens = part.talk->tokens();
      cache_.publish(*part.talk->seq,
                     std::span(tokens).subspan(static_cast<std::size_t>(part.first), static_cast<std::size_t>(part.n)));
      if (!part.sampled) continue;
      part.talk->out.push_back(token);
      part.talk->sampler->take(token);
    }
  }

  void finish(Talk& talk) {
    if (talk.seq) leave(talk);
    texts.push_back(talk.out);
    if (reference != nullptr) {
      again.check(*reference, talk.prompt, talk.out, test::make_sampler(talk.params, talk.seed, talk.prompt, n_vocab_));
    }
    begin(talk);
  }

  void begin(Talk& talk) {
    talk.prompt = shared_;
    const Tokens own = random_tokens(random_, 1 + random_() % load_.own, n_vocab_);
    talk.prompt.insert(talk.prompt.end(), own.begin(), own.end());
    talk.out.clear();
    talk.params = test::random_params(random_);
    if (load_.greedy) {
      sampling::SamplingParams p;
      p.temperature = 0;
      talk.params = std::make_shared<sampling::SamplingParams>(p);
    }
    talk.seed = random_();
    talk.sampler = test::make_sampler(talk.params, talk.seed, talk.prompt, n_vocab_);
  }

  void come(Talk& talk) {
    const Tokens tokens = talk.tokens();
    talk.seq = cache_.admit({.prompt = tokens}).value();
    talk.planned = cache_.lengths(*talk.seq).cached_len;
    talk.draw = -1;
  }

  void leave(Talk& talk) {
    cache_.finish(*std::exchange(talk.seq, std::nullopt));
    ++left;
    if (!last_) return;
    for (Part& part : last_->parts) {
      if (part.talk == &talk) part.talk = nullptr;
    }
  }

  std::mt19937_64 random_;
  Load load_;
  Executor& device_;
  int n_vocab_;
  kv::Cache cache_;
  Tokens shared_;
  std::vector<std::unique_ptr<Talk>> talks_;
  executor::Batch batch_;
  std::optional<Planned> last_;
};

int report(const std::string& what, bool ok) {
  std::printf("%-6s %s\n", ok ? "ok" : "FAILED", what.c_str());
  std::fflush(stdout);
  return ok ? 0 : 1;
}

int check(const std::string& name, const test::TinyModel& model, int steps, std::uint64_t seed) {
  const std::string path = test::write_tiny_model(model, test::scratch_folder() / "tiny.gguf").string();
  const auto device = on_gpu(path, std::size_t{16} << 20), reference = on_gpu(path, std::size_t{16} << 20);
  std::vector<Tokens> texts;
  int failed = 0;
  for (int round = 0; round < 2; ++round) {
    Caller caller(*device, {}, seed);
    if (round == 0) caller.reference = reference.get();
    std::string fault;
    for (int i = 0; i < steps && fault.empty(); ++i) {
      caller.step();
      if (i % 50 == 0) fault = caller.fault();
    }
    caller.end();
    failed += report(
        name + ": " + std::to_string(steps) + " steps, " + std::to_string(caller.drawn) + " rows of drawn tokens, " +
            std::to_string(caller.left) + " left, " + std::to_string(caller.refused) + " refused " + fault,
        fault.empty() && caller.drawn > 2 * steps && caller.left > steps / 4 && caller.refused > steps / 20);
    if (round == 0) {
      failed += report(name + ": of " + std::to_string(caller.again.tokens) + " tokens " +
                           std::to_string(caller.again.others) + " are others when the host draws",
                       caller.again.good() && caller.again.tokens > steps);
      texts = caller.texts;
    } else {
      failed += report(name + ": the same batches again give the same " + std::to_string(texts.size()) + " texts",
                       texts == caller.texts && texts.size() >= 7);
    }
  }
  return failed;
}

void time_steps(const std::string& path, std::size_t shared, int n, bool ahead) {
  constexpr int kWarm = 30, kSteps = 150;
  const auto device = on_gpu(path, 0);
  Caller caller(*device,
                {.talks = 1,
                 .chunk = 512,
                 .shared = shared,
                 .own = 200,
                 .longest = 1000,
                 .leaves_in = 0,
                 .ahead = ahead,
                 .greedy = true},
                5);
  for (int i = 0; i < static_cast<int>(shared / 512) + 5; ++i) caller.step();
  caller.add(n - 1);
  for (int i = 0; i < kWarm + n; ++i) caller.step();
  const executor::DeviceFigures before = device->device_figures();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kSteps; ++i) caller.step();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const executor::DeviceFigures after = device->device_figures();
  const double busy = after.forward_seconds - before.forward_seconds + after.sampling_seconds - before.sampling_seconds;
  std::printf(
      "%s: %zu shared, %d sequences, %s: %.0f tokens/s, %.3f ms a step: forward %.3f, sampling %.3f, no kernel %.3f ms "
      "(%.2f %%); gaps by events %.3f ms\n",
      path.substr(path.rfind('/') + 1).c_str(), shared, n, ahead ? "a step ahead" : "one step at a time",
      kSteps * n / seconds, 1e3 * seconds / kSteps, 1e3 * (after.forward_seconds - before.forward_seconds) / kSteps,
      1e3 * (after.sampling_seconds - before.sampling_seconds) / kSteps, 1e3 * (seconds - busy) / kSteps,
      100 * (1 - busy / seconds), 1e3 * (after.gap_seconds - before.gap_seconds) / kSteps);
  std::fflush(stdout);
  caller.end();
}

/// A kernel that reads where nothing is: no other can run after it in this process.
int lose() {
  const std::string path = test::write_tiny_model(test::model_for_gpu(), test::scratch_folder() / "tiny.gguf").string();
  std::string told;
  executor::cuda::CudaOptions o;
  o.kv_bytes = std::size_t{16} << 20;
  o.lost = [&](const std::string& sentence) { told = sentence; };
  const auto device = executor::cuda::load_cuda_executor(model::load_model(path), o, {});
  Caller caller(*device, {}, 1);
  for (int i = 0; i < 20; ++i) caller.step();
  int failed = report("all is well: " + told, told.empty());
  launch(executor::cuda::EmbedRows{.n = 256, .n_rows = 1}, test::current_gpu());
  std::string thrown;
  try {
    for (int i = 0; i < 5; ++i) caller.step();
  } catch (const executor::StepError& e) {
    thrown = e.what();
  }
  return failed + report("the GPU is lost: " + told, !told.empty() && thrown == told);
}

/// Lists of samples grow; when the GPU has no room for them, that step fails, and the next one runs.
int fill() {
  const std::string path = test::write_tiny_model(test::model_for_gpu(), test::scratch_folder() / "tiny.gguf").string();
  const auto device = on_gpu(path, std::size_t{16} << 20);
  const std::vector<kv::BlockId> blocks = {1};
  executor::Batch batch;
  batch.rows = {5};
  batch.sequences.push_back({.n_rows = 1, .first_position = 0, .tables = {{blocks, device->info().block_size}}});
  batch.sample_rows = {0};
  sampling::SamplerSpec small{.temperature = 0, .n_vocab = 320}, large = small;
  large.counts.assign(500'000, {.token = 1000, .times = 1});  // of tokens that the model hasn't
  const auto draw = [&](const sampling::SamplerSpec& spec) {
    const executor::Step step = device->submit(batch);
    device->sample(step, {&spec, 1});
    return device->wait(step).tokens[0];
  };
  const kv::Token expected = draw(small);
  std::vector<test::DeviceBytes> taken;
  for (std::size_t n = std::size_t{1} << 36; n >= std::size_t{1} << 20;) {
    try {
      taken.emplace_back(n);
    } catch (const std::runtime_error&) {
      n /= 2;
    }
  }
  cudaGetLastError();
  int failed = report("a small list has room: token " + std::to_string(expected), draw(small) == expected);
  std::string told;
  try {
    draw(large);
  } catch (const executor::OutOfMemory& e) {
    told = e.what();
  }
  failed += report("no room: " + told, !told.empty());
  taken.clear();
  return failed + report("room again", draw(small) == expected && draw(large) == expected);
}

int run(int argc, char** argv) {
  spdlog::set_level(spdlog::level::warn);
  if (argc > 1 && std::strcmp(argv[1], "--lose") == 0) return lose();
  if (argc > 1 && std::strcmp(argv[1], "--full") == 0) return fill();
  if (argc > 3 && std::strcmp(argv[1], "--time") == 0) {
    for (int i = 4; i < argc; ++i) {
      for (const bool ahead : {false, true})
        time_steps(argv[2], std::strtoul(argv[3], nullptr, 10), std::atoi(argv[i]), ahead);
    }
    return 0;
  }
  const int steps = argc > 1 ? std::atoi(argv[1]) : 2500;
  const char* given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : 26;
  std::printf("COPPICE_SEED=%llu replays this test\n", static_cast<unsigned long long>(seed));
  test::TinyModel m = test::model_for_gpu();
  int failed = check("llama", m, steps, seed);
  m.architecture = "gemma3";
  m.qk_norm = test::TinyQkNorm::kHeads;
  m.norms_behind = true;
  m.n_layer = 7;
  m.settings = {{"attention.sliding_window", 96}};
  failed += check("gemma3, windows", m, steps, seed + 1);
  return failed;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_program([&] {
    const int failed = coppice::run(argc, argv);
    std::printf("%d failed\n", failed);
    return failed == 0 ? 0 : 1;
  });
}
