#include "cli/bench.h"

#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_quality.h"
#include "cli/load.h"
#include "executor/ggml/ggml_executor.h"
#include "text/vocabulary.h"

namespace coppice::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStepTokens = 512;
constexpr int kPrefill = 512;
constexpr int kDecode = 64;
constexpr int kStreams = 8;
constexpr int kDepth = 400;
constexpr int kDeepStreams = 1500;
constexpr int kSharedStreams = 16;
constexpr int kSharedPrefix = 2048;
constexpr int kDeepStream = 16'384;
constexpr int kLongPrompt = 4000;
constexpr int kQualityChunk = 256;

using Case = Json (*)(executor::Executor&, std::uint64_t);

struct BenchOptions {
  executor::GgmlOptions ggml;
  std::string name = "stream";
  std::string text;  ///< file, for quality
  int tokens = 20'480;
  int window = 2'048;
  int repeat = 3;
  std::uint64_t seed = 1;
};

Json decode_json(const DecodeSpeed& speed) {
  return {{"decode_tokens_per_s", speed.tokens_per_s},
          {"bookkeeping", speed.bookkeeping},
          {"kv_mib_per_step", speed.kv_bytes_per_step / (1 << 20)},
          {"kv_gb_per_s", speed.kv_bytes_per_s / 1e9},
          {"kv_read_ratio", speed.kv_read_ratio}};
}

Json stream_json(const StreamSpeed& speed) {
  Json json = decode_json(speed.decode);
  json["prefill_tokens_per_s"] = speed.prefill_tokens_per_s;
  return json;
}

Json stream_case(executor::Executor& executor, std::uint64_t seed) {
  return stream_json(bench_stream(executor, kPrefill, kDecode, seed));
}

Json batch_case(executor::Executor& executor, std::uint64_t seed) {
  return decode_json(bench_batch(executor, kStreams, kDepth, kDecode, kStepTokens, seed));
}

Json deep_batch_case(executor::Executor& executor, std::uint64_t seed) {
  return decode_json(bench_batch(executor, kStreams, kDeepStreams, kDecode, kStepTokens, seed));
}

Json shared_case(executor::Executor& executor, std::uint64_t seed) {
  return decode_json(bench_shared(executor, kSharedStreams, kSharedPrefix, kDecode, kStepTokens, seed));
}

template <int Depth>
Json depth_case(executor::Executor& executor, std::uint64_t seed) {
  return stream_json(bench_depth(executor, Depth, kPrefill, kDecode, seed));
}

Json gaps_case(executor::Executor& executor, std::uint64_t seed) {
  const Gaps gaps = bench_gaps(executor, kStepTokens, kLongPrompt, seed);
  return {{"quiet_median_ms", gaps.quiet_median_ms},
          {"median_ms", gaps.median_ms},
          {"p99_ms", gaps.p99_ms},
          {"count", gaps.count}};
}

/// The median of each figure over the runs.
Json medians(const std::vector<Json>& runs) {
  Json result;
  for (const auto& [name, first] : runs.front().items()) {
    std::vector<double> values;
    for (const Json& run : runs) values.push_back(run.at(name).get<double>());
    result[name] = median(std::move(values));
  }
  return result;
}

const std::map<std::string, Case>& cases() {
  static const std::map<std::string, Case> all = {{"stream", stream_case}, {"depth", depth_case<kSharedPrefix>},
                                                  {"batch", batch_case},   {"deep", depth_case<kDeepStream>},
                                                  {"shared", shared_case}, {"deep-batch", deep_batch_case},
                                                  {"gaps", gaps_case}};
  return all;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, run] : cases()) names.push_back(name);
  names.push_back("quality");
  return names;
}

/// The options' executor against one on f16 with the backend that `auto` chooses.
Json quality_case(const BenchOptions& options) {
  if (options.text.empty()) throw std::runtime_error("--case quality needs --text FILE");
  std::ifstream file(options.text, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read " + options.text);
  std::vector<kv::Token> tokens = text::Vocabulary(options.ggml.model_path).tokenize(text, false, false);
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(options.tokens)));
  executor::GgmlOptions f16 = options.ggml;
  f16.kv_format = "f16";
  f16.attention = "auto";
  const auto reference = executor::load_ggml_executor(f16, {}), tested = executor::load_ggml_executor(options.ggml, {});
  if (const int context = reference->info().context_length; options.window > context) {
    throw std::runtime_error(fmt::format("--window {} is beyond the model's context of {}", options.window, context));
  }
  const Quality q = compare_quality(*reference, *tested, tokens, options.window, kQualityChunk);
  return {{"predictions", q.predictions}, {"perplexity_f16", q.perplexity_before},
          {"perplexity", q.perplexity},   {"kl_mean", q.kl_mean},
          {"kl_p99", q.kl_p99},           {"same_top", q.same_top}};
}

int run_bench(BenchOptions options) try {
  spdlog::set_default_logger(spdlog::stderr_color_mt("coppice"));  // standard output is for the figures alone
  options.ggml.max_rows = kStepTokens;
  options.ggml.max_sequences = 32;
  if (options.name == "quality") {
    fmt::print("{}\n", quality_case(options).dump());
    return 0;
  }
  const auto executor = executor::load_ggml_executor(options.ggml, {});
  const Case run_case = cases().at(options.name);
  run_case(*executor, options.seed);  // weights read, graphs made
  std::vector<Json> runs;
  for (int i = 1; i <= options.repeat; ++i)
    runs.push_back(run_case(*executor, options.seed + static_cast<unsigned>(i)));
  fmt::print("{}\n", medians(runs).dump());
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "coppice bench: {}\n", error.what());
  return 1;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  options->ggml.kv_bytes = std::size_t{512} << 20;
  CLI::App* command = app.add_subcommand("bench", "Time the engine in this process; JSON on standard output");
  command->add_option("--model,-m", options->ggml.model_path, "GGUF file")->required();
  command
      ->add_option("--case", options->name,
                   "stream: one stream; depth: one at depth 2,048; deep: at depth 16,384; "
                   "batch: eight unrelated ones decoding at depth 400; deep-batch: at depth 1,500; "
                   "shared: sixteen decoding on one prefix of 2,048 tokens; gaps: one beside a long prompt's prefill; "
                   "quality: predictions on a text against those on f16")
      ->check(CLI::IsMember(case_names()))
      ->capture_default_str();
  command->add_option("--text", options->text, "File for the case quality")->check(CLI::ExistingFile);
  command->add_option("--tokens", options->tokens, "Of the text, for the case quality")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--window", options->window, "Tokens read one after the other, for the case quality")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeat", options->repeat, "Runs after the warm-up; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--threads,-t", options->ggml.n_threads, "Threads that compute (default: one for each core)")
      ->check(CLI::Range(1, 512));
  command->add_option("--attention", options->ggml.attention, "auto, tree, gather or dense")
      ->check(CLI::IsMember({"auto", "tree", "gather", "dense"}))
      ->capture_default_str();
  command->add_option("--kv-format", options->ggml.kv_format, "f16, int8 or turbo4")
      ->check(CLI::IsMember({"f16", "int8", "turbo4"}))
      ->capture_default_str();
  command->add_option("--kv-bytes", options->ggml.kv_bytes, "Size of the KV pool: 512MiB, bytes")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 46));
  command->add_option("--seed", options->seed, "Of the random prompts")->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace coppice::cli
