// One executor on each of the host's GPUs, in one process: what they answer, one after the other and at the same time
// in threads of their own, and as a caller plays with each by turns, a step of each under way. Where the cards are of
// one kind all must be the same bits; and all tokens those that the host draws. Needs two GPUs. Arguments: [STEPS].
// COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/answers.h"
#include "cuda/caller.h"
#include "cuda/executor_program.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using executor::Executor;
using test::report;
using Executors = std::vector<std::unique_ptr<Executor>>;
using Answers = std::vector<test::Row>;

/// Each executor's on a thread of its own: GPU 0 is current there at first.
std::vector<Answers> at_once(const Executors& executors) {
  std::vector<Answers> all(executors.size());
  std::vector<std::jthread> threads;
  for (std::size_t i = 0; i < executors.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        all[i] = test::answers(*executors[i], 3);
      } catch (const std::exception& e) {
        std::printf("GPU %zu: %s\n", i, e.what());
      }
    });
  }
  threads.clear();
  return all;
}

int check_answers(const std::string& name, const Executors& executors, bool alike) {
  int failed = 0;
  std::vector<Answers> alone;
  for (const auto& e : executors) alone.push_back(test::answers(*e, 3));
  for (std::size_t i = 1; i < alone.size() && alike; ++i)
    failed += report(name + ": the same bits on GPU " + std::to_string(i) + " as on GPU 0", alone[i] == alone[0]);
  failed += report(name + ": the same bits at the same time", at_once(executors) == alone);
  return failed;
}

/// What the host draws is not asked where reference is null: rounding turns a choice of experts over, and with it a
/// row.
int check_callers(const std::string& name, const Executors& executors, Executor* reference, bool alike, int steps,
                  std::uint64_t seed) {
  std::vector<std::unique_ptr<test::Caller>> callers;
  for (const auto& e : executors) {
    callers.push_back(std::make_unique<test::Caller>(*e, test::CallerLoad{}, seed));
    callers.back()->reference = reference;
  }
  for (int i = 0; i < steps; ++i) {
    for (const auto& caller : callers) caller->step();
  }
  int failed = 0;
  for (std::size_t i = 0; i < callers.size(); ++i) {
    test::Caller& caller = *callers[i];
    caller.end();
    const bool as_host = reference == nullptr || (caller.again.good() && caller.again.tokens > steps);
    failed += report(
        name + ", GPU " + std::to_string(i) + ": " + std::to_string(steps) + " steps by turns, " +
            std::to_string(caller.drawn) + " rows of drawn tokens; of " + std::to_string(caller.again.tokens) +
            " tokens " + std::to_string(caller.again.others) + " are others when the host draws " + caller.fault(),
        caller.fault().empty() && caller.drawn > 2 * steps && as_host && (!alike || caller.texts == callers[0]->texts));
  }
  return failed;
}

struct Load {
  int n_gpus = 0;
  bool alike = true;  ///< they are of one kind
  int steps = 0;
  std::uint64_t seed = 0;
};

int check(const std::string& name, const test::TinyModel& model, const std::string& kv_format, const Load& load) {
  const std::string path = test::write_model(model);
  const auto load_on = [&](int number) {
    return test::on_gpu(
        path, {.device = number, .kv_format = kv_format, .kv_bytes = std::size_t{64} << 20, .max_sequences = 64});
  };
  Executors executors;
  for (int i = 0; i < load.n_gpus; ++i) executors.push_back(load_on(i));
  int failed = check_answers(name, executors, load.alike);
  // On the last GPU: whoever draws there must not take it for the first one's.
  const auto reference = load_on(load.n_gpus - 1);
  failed += check_callers(name, executors, model.experts.n > 0 ? nullptr : reference.get(), load.alike, load.steps,
                          load.seed);
  const Answers before = test::answers(*executors.back(), 3);
  executors.erase(executors.begin());
  return failed +
         report(name + ": the others live on without the first", test::answers(*executors.back(), 3) == before);
}

int run(int argc, char** argv) {
  const executor::cuda::Devices devices = executor::cuda::find_devices();
  const auto n_gpus = static_cast<int>(devices.usable.size());
  if (n_gpus < 2) {
    std::printf("skipped: there are not two GPUs\n");
    return 0;
  }
  Load load{.n_gpus = n_gpus, .steps = argc > 1 ? std::atoi(argv[1]) : 600};
  for (const executor::cuda::DeviceName& d : devices.usable)
    load.alike = load.alike && d.name == devices.usable[0].name;
  load.seed = test::program_seed(26);
  std::printf("%d GPUs%s\n", n_gpus, load.alike ? " of one kind" : "");
  static constexpr int kQ4K = 12, kQ6K = 14, kQ8_0 = 8;
  test::TinyModel m = test::model_for_gpu();
  int failed = check("llama", m, "f16", load);
  m.matrix_type = kQ4K, m.other_types = {{"attn_v", kQ6K}};
  failed += check("llama, Q4_K and Q6_K, int8", m, "int8", load);
  m = test::model_for_gpu();
  m.architecture = "gpt-oss", m.n_layer = 4, m.biases = true, m.feed_forward_norm = "post_attention_norm";
  m.sinks = true, m.tied = false, m.matrix_type = kQ8_0;
  m.experts = {.n = 8, .n_used = 3, .biases = true};
  m.settings = {{"attention.sliding_window", 96}};
  failed += check("gpt-oss, experts, windows", m, "f16", load);
  return failed;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_checks(argc, argv, coppice::run);
}
