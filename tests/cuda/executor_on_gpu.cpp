// The executor on the GPU against the one on the CPU (answers.h), over blocks in shuffled order. Weights of the CPU's
// are f32 copies of the file's, so what is measured is rounding: the GPU's rows are bf16 between operators. Prints a
// line a case; exits with 1 if an error is too large. Arguments: GGUF files; without any, tiny random models. Of these
// --small takes some, and few rows, for compute-sanitizer; --only TEXT those that have it in their name.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "cuda/answers.h"
#include "cuda/executor_program.h"
#include "executor/ggml/ggml_executor.h"

namespace coppice {
namespace {

using executor::Executor;
using test::answers;
using test::AnswersLoad;
using test::Row;

constexpr std::uint32_t kShuffle = 20240229;

/// Of relative errors of rows.
struct Spread {
  double sum = 0.0, max = 0.0;
  int n = 0;
  void add(const std::vector<Row>& got, const std::vector<Row>& expected) {
    if (got.size() != expected.size()) throw std::runtime_error("other rows than wanted");
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double d = test::relative_rms(got[i], expected[i]);
      sum += d;
      max = d <= max ? max : d;  // NaN is not
      ++n;
    }
  }
  double mean() const { return sum / n; }
};

std::unique_ptr<Executor> on_gpu(const std::string& path, const std::string& kv_format, std::size_t state_bytes = 0) {
  return test::on_gpu(path, {.kv_format = kv_format, .kv_bytes = std::size_t{256} << 20, .state_bytes = state_bytes});
}

std::unique_ptr<Executor> on_cpu(const std::string& path, int n_threads) {
  executor::GgmlOptions o;
  o.attention = "tree";
  o.kv_bytes = std::size_t{256} << 20;
  o.n_threads = n_threads;
  return executor::load_ggml_executor(model::load_model(path), o, {});
}

/// least_worst: what the worst row may be off in any case. On random tokens a trained model has rows that a last bit
/// turns over.
int report(const std::string& what, const std::vector<Row>& got, const std::vector<Row>& expected, double tolerance,
           double least_worst) {
  Spread spread;
  spread.add(got, expected);
  const bool ok = spread.mean() <= tolerance && spread.max <= std::max(4 * tolerance, least_worst);
  return test::report(fmt::format("{}: mean {:.4f}, worst row {:.4f} of {}", what, spread.mean(), spread.max, spread.n),
                      ok);
}

/// Rounding to 8 bits at some ten places of a layer; a format of 8-bit keys and values adds its own.
constexpr double kRounded = 2e-2, kRoundedBytes = 4e-2;
/// A row whose experts are as good as equally good may take another one, and is another row then; the CPU's own packed
/// weights do that to some rows, too (Mixtral's shape: 0.69). How many do is bounded by the mean.
constexpr double kOtherExpert = 1.0;

/// cpu_threads: more only wait for each other where a model is tiny. in_parts: how many times as much steps see that
/// are cut for want of room, at most.
int check(const std::string& name, const std::string& path, const AnswersLoad& load, int cpu_threads,
          double& in_parts) {
  const bool mixed = model::load_model(path).spec.layers.back().experts.n > 0;
  const std::string exact = (test::scratch_folder() / "exact.gguf").string();
  test::dequantize_gguf(path, exact);
  const std::vector<Row> expected = answers(*on_cpu(exact, cpu_threads), kShuffle, load);
  int failed = 0;
  const auto of_file = answers(*on_cpu(path, cpu_threads), kShuffle, load);
  Spread cpu;
  cpu.add(of_file, expected);
  std::printf("       %s: the CPU's own packed weights are off by %.4f, worst row %.4f\n", name.c_str(), cpu.mean(),
              cpu.max);
  const double least_worst = mixed ? kOtherExpert : 1.5 * cpu.max;
  const auto e = on_gpu(path, "f16");
  const auto got = answers(*e, kShuffle, load);
  failed += report(name, got, expected, kRounded, least_worst);
  const bool same = answers(*e, 1, load) == got && answers(*e, kShuffle, load) == got;
  failed += test::report(name + ": the same bits again, and in other blocks", same);
  const auto little = on_gpu(path, "f16", 1);
  failed += report(name + ", in parts", answers(*little, kShuffle, load), expected, kRounded, least_worst);
  const auto seen = [](const Executor& of) { return static_cast<double>(of.kv_traffic().bytes_unique); };
  in_parts = std::max(in_parts, 3 * seen(*little) / seen(*e));  // that one has answered three times
  failed +=
      report(name + ", int8", answers(*on_gpu(path, "int8"), kShuffle, load), expected, kRoundedBytes, least_worst);
  return failed;
}

struct TinyCase {
  const char* name;
  test::TinyModel model;
  bool in_small;
};

std::vector<TinyCase> tiny_cases() {
  static constexpr int kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kQ4K = 12, kQ6K = 14, kMxfp4 = 39;
  const test::TinyModel m = test::model_for_gpu();
  std::vector<TinyCase> all;
  const auto add = [&](const char* name, auto change) {
    test::TinyModel changed = m;
    change(changed);
    all.push_back({name, changed, changed.matrix_type == kQ4K || changed.n_head == 9 || changed.n_layer == 4});
  };
  add("llama, f32", [](auto&) {});
  add("llama, Q4_0, untied", [](auto& t) { t.matrix_type = kQ4_0, t.tied = false; });
  add("llama, Q4_1", [](auto& t) { t.matrix_type = kQ4_1; });
  add("llama, Q4_K, values in Q6_K", [](auto& t) { t.matrix_type = kQ4K, t.other_types = {{"attn_v", kQ6K}}; });
  add("qwen2, biases, Q8_0", [](auto& t) { t.architecture = "qwen2", t.qkv_biases = true, t.matrix_type = kQ8_0; });
  add("qwen3, norms of heads of 128",
      [](auto& t) { t.architecture = "qwen3", t.qk_norm = test::TinyQkNorm::kHeads, t.head_dim = 128; });
  add("gemma3, sliding windows, heads of 256", [](auto& t) {
    t.architecture = "gemma3", t.qk_norm = test::TinyQkNorm::kHeads, t.norms_behind = true, t.head_dim = 256;
    t.n_layer = 7;
    t.settings = {{"attention.sliding_window", 96}};
  });
  add("gemma3, 9 heads on 3", [](auto& t) {
    t.architecture = "gemma3", t.qk_norm = test::TinyQkNorm::kHeads, t.norms_behind = true, t.head_dim = 64;
    t.n_head = 9, t.n_kv_head = 3, t.n_embd = 192;
    t.settings = {{"attention.sliding_window", 40}};
  });
  add("gemma2, softcaps, heads of 256", [](auto& t) {
    t.architecture = "gemma2", t.norms_behind = true, t.head_dim = 256, t.n_layer = 4;
    t.settings = {
        {"attention.sliding_window", 96}, {"attn_logit_softcapping", 3.0F}, {"final_logit_softcapping", 5.0F}};
  });
  add("granite, scales", [](auto& t) {
    t.architecture = "granite";
    t.settings = {
        {"embedding_scale", 3.0F}, {"residual_scale", 0.4F}, {"logit_scale", 2.5F}, {"attention.scale", 0.1F}};
  });
  add("mistral3, sharpened queries", [](auto& t) {
    t.architecture = "mistral3";
    t.settings = {{"rope.scaling.type", "yarn"},
                  {"rope.scaling.factor", 16.0F},
                  {"rope.scaling.original_context_length", 32},
                  {"attention.temperature_scale", 0.3F}};
  });
  add("exaone4, norms behind only", [](auto& t) {
    t.architecture = "exaone4", t.qk_norm = test::TinyQkNorm::kHeads, t.norms_before = false, t.norms_behind = true;
  });
  add("mixtral, Q4_0", [](auto& t) { t.matrix_type = kQ4_0, t.experts = {.n = 8, .n_ff = 128}; });
  add("qwen3moe, Q4_K, down in Q6_K", [](auto& t) {
    t.architecture = "qwen3moe", t.qk_norm = test::TinyQkNorm::kHeads, t.head_dim = 128, t.tied = false;
    t.matrix_type = kQ4K, t.other_types = {{"ffn_down_exps", kQ6K}}, t.experts = {.n = 32, .n_used = 4, .n_ff = 256};
  });
  add("glm4moe, a dense layer, a shared expert, sigmoids", [](auto& t) {
    t.architecture = "glm4moe", t.qk_norm = test::TinyQkNorm::kHeads, t.qkv_biases = true, t.rope_dims = 32;
    t.feed_forward_norm = "post_attention_norm", t.tied = false;
    t.experts = {.n = 8, .n_used = 3, .first_layer = 1, .selection_bias = true, .shared_ff = 64};
    t.settings = {{"leading_dense_block_count", 1},
                  {"expert_shared_count", 1},
                  {"expert_weights_scale", 1.7F},
                  {"expert_weights_norm", true},
                  {"expert_gating_func", 2}};
  });
  add("gpt-oss, sinks, biases, windows, experts in MXFP4", [](auto& t) {
    t.architecture = "gpt-oss", t.n_layer = 4, t.biases = true, t.feed_forward_norm = "post_attention_norm";
    t.sinks = true, t.tied = false, t.matrix_type = kQ8_0;
    t.other_types = {{"ffn_gate_exps", kMxfp4}, {"ffn_up_exps", kMxfp4}, {"ffn_down_exps", kMxfp4}};
    t.experts = {.n = 8, .n_used = 3, .biases = true};
    t.settings = {{"attention.sliding_window", 96},
                  {"rope.scaling.type", "yarn"},
                  {"rope.scaling.factor", 4.0F},
                  {"rope.scaling.original_context_length", 128},
                  {"rope.freq_base", 150000.0F}};
  });
  add("qwen2moe, Q8_0, a gated shared expert", [](auto& t) {
    t.architecture = "qwen2moe", t.qkv_biases = true, t.tied = false, t.matrix_type = kQ8_0, t.n_layer = 4;
    t.experts = {.n = 12, .n_used = 4, .shared_ff = 128, .shared_gate = true};
  });
  add("olmo2, norms over all heads, 9 on 3", [](auto& t) {
    t.architecture = "olmo2", t.qk_norm = test::TinyQkNorm::kWhole, t.norms_before = false, t.norms_behind = true;
    t.n_head = 9, t.n_kv_head = 3, t.n_embd = 192, t.n_layer = 5, t.tied = false;
    t.settings = {{"attention.sliding_window", 96},
                  {"attention.sliding_window_pattern", std::vector{true, true, false, true, false}},
                  {"rope.scaling.type", "yarn"},
                  {"rope.scaling.factor", 4.0F},
                  {"rope.scaling.original_context_length", 128}};
  });
  add("llama4, chunks, weighted inputs of experts", [](auto& t) {
    t.architecture = "llama4", t.n_layer = 4, t.tied = false, t.matrix_type = kQ8_0;
    t.experts = {.n = 6, .n_used = 1, .every = 2, .shared_ff = 64};
    t.settings = {{"interleave_moe_layer_step", 2},
                  {"attention.sliding_window", 96},
                  {"attention.scale", 0.06F},
                  {"attention.temperature_scale", 0.3F},
                  {"attention.temperature_length", 64}};
  });
  add("spark2_5, a gate for each head", [](auto& t) {
    t.architecture = "spark2_5", t.n_layer = 4, t.rope_dims = 32, t.slides = {true, false, true, false};
    t.gate = test::TinyGate::kHeads;
    t.settings = {{"attention.sliding_window", 96}, {"rope.dimension_count_swa", 48}, {"rope.freq_base_swa", 500.0F}};
  });
  add("spark2_5, other heads in windows", [](auto& t) {
    t.architecture = "spark2_5", t.n_layer = 4, t.slides = {true, false, true, false}, t.gate = test::TinyGate::kHeads;
    t.sliding_kv_heads = 1;
    t.settings = {{"attention.sliding_window", 96}, {"rope.freq_base_swa", 500.0F}};
  });
  add("muse-glimmer, a gate for each value, normalised embeddings", [](auto& t) {
    t.architecture = "muse-glimmer", t.n_layer = 4, t.qk_norm = test::TinyQkNorm::kHeads, t.norms_behind = true;
    t.gate = test::TinyGate::kValues, t.tied = false, t.matrix_type = kQ4K, t.other_types = {{"attn_v", kQ6K}};
    t.settings = {{"attention.sliding_window", 96}, {"logit_scale", 0.4F}, {"final_logit_softcapping", 5.0F}};
  });
  return all;
}

int run(int argc, char** argv) {
  int failed = 0;
  double in_parts = 0.0;
  const bool small = test::is_small(argc, argv);
  if (small) --argc, ++argv;
  const std::string only = argc == 3 && std::strcmp(argv[1], "--only") == 0 ? argv[2] : "";
  for (int i = 1; i < argc && only.empty(); ++i) failed += check(argv[i], argv[i], {.longest = 700}, 4, in_parts);
  if (argc > 1 && only.empty()) return failed;
  for (const TinyCase& c : tiny_cases()) {
    if ((small && !c.in_small) || std::string(c.name).find(only) == std::string::npos) continue;
    const AnswersLoad load = small ? AnswersLoad{.longest = 50, .decode_steps = 6, .streams = 4} : AnswersLoad{};
    failed += check(c.name, test::write_model(c.model), load, 1, in_parts);
  }
  const bool cut = small || !only.empty() || in_parts > 2;
  return failed +
         test::report(fmt::format("steps that are cut for want of room see up to {:.2f} times as much", in_parts), cut);
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_checks(argc, argv, coppice::run);
}
