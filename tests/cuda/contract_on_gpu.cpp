// The contract of an executor that works ahead (tests/engine/contract_test.cpp), over the GPU: each step is planned and
// submitted before the last one's tokens are known, sequences come, go and come back, and batches are refused. All
// tokens must be those that the host draws from logits of one text alone, but for the few where rounding decides; the
// same order of events gives the same tokens, bit by bit. Arguments: [STEPS]; or --time MODEL SHARED SEQUENCES...: what
// a step of so many sequences behind a shared prompt takes, with steps ahead and without, and the share of it without a
// kernel; or --lose: what a lost GPU is answered with, and --full: one whose memory is taken. COPPICE_SEED=n replays a
// run.
#include <cuda_runtime_api.h>

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

#include "cuda/caller.h"
#include "cuda/executor_program.h"
#include "executor/cuda/operators.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using test::Caller;
using test::on_gpu;
using test::report;
using test::Tokens;

executor::cuda::CudaOptions options(std::size_t kv_bytes) {
  return {.kv_bytes = kv_bytes, .max_sequences = 64, .context = 16384};
}

int check(const std::string& name, const test::TinyModel& model, int steps, std::uint64_t seed) {
  const std::string path = test::write_model(model);
  const auto o = options(std::size_t{16} << 20);
  const auto device = on_gpu(path, o), reference = on_gpu(path, o);
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
  const auto device = on_gpu(path, options(0));
  Caller caller(*device,
                {.talks = 1,
                 .shared = shared,
                 .own = 200,
                 .greedy = true,
                 .steps = {.chunk = 512, .longest = 1000, .leaves_in = 0, .ahead = ahead}},
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
  const std::string path = test::write_model(test::model_for_gpu());
  std::string told;
  executor::cuda::CudaOptions o;
  o.kv_bytes = std::size_t{16} << 20;
  o.lost = [&](const std::string& sentence) { told = sentence; };
  const auto device = on_gpu(path, o);
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
  const std::string path = test::write_model(test::model_for_gpu());
  const auto device = on_gpu(path, options(std::size_t{16} << 20));
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
  const std::uint64_t seed = test::program_seed(26);
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
  return coppice::test::run_checks(argc, argv, coppice::run);
}
