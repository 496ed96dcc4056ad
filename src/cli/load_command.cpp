#include "cli/load_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "cli/load.h"

namespace coppice::cli {
namespace {

struct LoadOptions {
  std::string url = "http://127.0.0.1:8080";
  int max_tokens = 48;
  bool json = false;
};

nlohmann::ordered_json to_json(const LoadResult& result) {
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  std::int64_t prompt = 0;
  std::int64_t cached = 0;
  std::int64_t completion = 0;
  for (const Answer& answer : result.answers) {
    prompt += answer.prompt_tokens;
    cached += answer.cached_tokens;
    completion += answer.completion_tokens;
    answers.push_back(answer.text);
  }
  return {
      {"wall_ms", result.wall_ms},
      {"ttft_ms_p50", result.ttft_p50_ms()},
      {"ttft_ms_max", result.ttft_max_ms()},
      {"output_tokens_per_s", result.output_tokens_per_s()},
      {"prompt_tokens", prompt},
      {"cached_tokens", cached},
      {"completion_tokens", completion},
      {"answers", answers},
  };
}

int run_load_command(const LoadOptions& options) try {
  const Endpoint server = parse_url(options.url);
  warm_up(server);
  const LoadResult result = run_load(server, demo_requests(options.max_tokens), [](const LoadProgress&) {});
  const nlohmann::ordered_json json = to_json(result);
  if (options.json) {
    fmt::print("{}\n", json.dump(2));
  } else {
    fmt::print(
        "{} requests in {:.2f} s; first token: median {:.2f} s, slowest {:.2f} s; {:.1f} output tokens/s\n"
        "{} prompt tokens, {} of them cached; {} completion tokens\n",
        result.answers.size(), result.wall_ms / 1000, result.ttft_p50_ms() / 1000, result.ttft_max_ms() / 1000,
        result.output_tokens_per_s(), json["prompt_tokens"].get<std::int64_t>(),
        json["cached_tokens"].get<std::int64_t>(), json["completion_tokens"].get<std::int64_t>());
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "coppice load: {}\n", error.what());
  return 1;
}

}  // namespace

void add_load(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<LoadOptions>();
  CLI::App* command = app.add_subcommand("load", "The demo's eight requests at once against a running server");
  command->add_option("--url", options->url, "The server")->capture_default_str();
  command->add_option("--max-tokens", options->max_tokens, "Tokens of each answer, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print the figures and the answers as JSON");
  command->callback([options, &exit_code] { exit_code = run_load_command(*options); });
}

}  // namespace coppice::cli
