#include "cli/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/bench_engine.h"
#include "cli/bench_quality.h"
#include "cli/cache_config.h"
#include "cli/devices.h"
#include "cli/memory_nodes.h"
#include "text/vocabulary.h"

namespace coppice::cli {
namespace {

constexpr const char* kQuality = "quality";

struct BenchOptions {
  std::string model;
  std::string device = "cpu";
  std::string numa = "none";
  executor::GgmlOptions ggml;
  std::string name = "stream";
  std::string text;  ///< file, for quality
  int tokens = 20'480;
  int window = 2'048;
  int repeat = 3;
  int step_tokens = 0;
  std::uint64_t seed = 1;
};

std::unique_ptr<executor::Executor> load(const BenchOptions& options, const executor::GgmlOptions& ggml) {
  model::Model model = model::load_model(options.model);
  const Device device = choose_device(options.device, model, ggml);
  return device.load(std::move(model), ggml, {});
}

/// Medians over `repeat` runs, after one that reads the weights and makes the graphs.
Figures engine_figures(const BenchOptions& options) {
  const auto executor = load(options, options.ggml);
  const EngineCase& what = *std::ranges::find(engine_cases(), options.name, &EngineCase::name);
  EngineCase warm_up = what;
  warm_up.prompt = std::min(what.prompt, 2048);
  run_case(warm_up, *executor, options.seed, options.step_tokens);
  std::vector<Figures> runs;
  for (int i = 1; i <= options.repeat; ++i) {
    runs.push_back(run_case(what, *executor, options.seed + static_cast<unsigned>(i), options.step_tokens));
  }
  Figures figures = runs.front();
  for (std::size_t f = 0; f < figures.size(); ++f) {
    std::vector<double> values;
    for (const Figures& run : runs) values.push_back(run[f].second);
    figures[f].second = median(std::move(values));
  }
  return figures;
}

/// The options' executor against one on f16 with the backend that `auto` chooses.
Figures quality_figures(const BenchOptions& options) {
  if (options.text.empty()) throw std::runtime_error("--case quality needs --text FILE");
  std::ifstream file(options.text, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw std::runtime_error("cannot read " + options.text);
  std::vector<kv::Token> tokens = text::Vocabulary(options.model).tokenize(text, false, false);
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(options.tokens)));
  executor::GgmlOptions f16 = options.ggml;
  f16.kv_format = "f16";
  f16.attention = "auto";
  const auto reference = load(options, f16), tested = load(options, options.ggml);
  if (const int context = reference->info().context_length; options.window > context) {
    throw std::runtime_error(fmt::format("--window {} is beyond the model's context of {}", options.window, context));
  }
  constexpr int kChunk = 256;
  const Quality q = compare_quality(*reference, *tested, tokens, options.window, kChunk);
  return {{"predictions", static_cast<double>(q.predictions)},
          {"perplexity_f16", q.perplexity_before},
          {"perplexity", q.perplexity},
          {"kl_mean", q.kl_mean},
          {"kl_p99", q.kl_p99},
          {"same_top", q.same_top}};
}

int run_bench(BenchOptions options) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("coppice"));  // standard output is for the figures alone
  place_memory(options.numa);
  options.ggml.max_rows = std::max(kAloneTokens, options.step_tokens);
  options.ggml.max_sequences = 32;
  std::vector<std::string> members;
  for (const auto& [name, value] : options.name == kQuality ? quality_figures(options) : engine_figures(options)) {
    members.push_back(fmt::format("\"{}\": {}", name, value));
  }
  fmt::print("{{{}}}\n", fmt::join(members, ", "));
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<BenchOptions>();
  options->ggml.kv_bytes = std::size_t{512} << 20;
  std::vector<std::string> names;
  std::string meanings;
  for (const EngineCase& each : engine_cases()) {
    names.emplace_back(each.name);
    meanings += fmt::format("{}: {}; ", each.name, each.meaning);
  }
  names.emplace_back(kQuality);
  CLI::App* command = app.add_subcommand("bench", "Time the engine without HTTP; prints medians as JSON");
  command->add_option("--model,-m", options->model, "GGUF file")->required();
  command->add_option("--case", options->name, meanings + "quality: predictions on a text against those on f16")
      ->check(CLI::IsMember(names))
      ->capture_default_str();
  command->add_option("--text", options->text, "File for the case quality")->check(CLI::ExistingFile);
  command->add_option("--tokens", options->tokens, "How much of the text, for the case quality")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command->add_option("--window", options->window, "Tokens of a context, for the case quality")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  command->add_option("--repeat", options->repeat, "Runs after the warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command
      ->add_option("--step-tokens", options->step_tokens,
                   "As serve's, for the cases prompt and document (default: as serve)")
      ->check(CLI::Range(1, 65536));
  command->add_option("--device", options->device, "As serve's")
      ->check(CLI::Validator(check_device, ""))
      ->capture_default_str();
  command
      ->add_option("--threads,-t", options->ggml.n_threads,
                   "Threads that compute (default: one for each core that is free)")
      ->check(CLI::Range(1, 512));
  command->add_option("--numa", options->numa, "As serve's")
      ->check(CLI::IsMember({"none", "interleave"}))
      ->capture_default_str();
  command->add_option("--attention", options->ggml.attention, "Attention backend")
      ->check(CLI::IsMember({"auto", "tree", "gather", "dense"}))
      ->capture_default_str();
  command->add_option("--kv-format", options->ggml.kv_format, "How keys and values are stored")
      ->check(CLI::IsMember({"f16", "int8", "turbo4"}))
      ->capture_default_str();
  command->add_option("--kv-bytes", options->ggml.kv_bytes, "Size of the KV pool, such as 512MiB")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 46));
  command->add_option("--seed", options->seed, "Seed of the random prompts")->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_bench(*options); });
}

}  // namespace coppice::cli
