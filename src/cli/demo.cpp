#include "cli/demo.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/child_server.h"
#include "cli/demo_report.h"
#include "cli/demo_text.h"
#include "cli/load.h"

namespace coppice::cli {
namespace {

constexpr int kAnswerTokens = 48;
constexpr std::chrono::seconds kLoadTime{120};

struct DemoOptions {
  std::string model;
  std::string out;
  int threads = 0;
};

/// One line that is rewritten in place on a terminal; elsewhere only the finished lines are shown.
class ProgressLine {
 public:
  void update(const std::string& text) const {
    if (terminal_) {
      fmt::print(stderr, "\r\033[K  {}", text);
      std::fflush(stderr);
    }
  }
  void finish(const std::string& text) const {
    fmt::print(stderr, "{}  {}\n", terminal_ ? "\r\033[K" : "", text);
    std::fflush(stderr);
  }

 private:
  bool terminal_ = ::isatty(STDERR_FILENO) == 1;
};

std::int64_t figure(const nlohmann::json& stats, const char* group, const char* name) {
  return stats.at(group).at(name).get<std::int64_t>();
}

DemoRun run_once(const DemoOptions& options, bool share) {
  const ProgressLine line;
  const std::string name = share ? "sharing on " : "sharing off";
  const auto log = std::filesystem::path(options.out).replace_filename(share ? "demo-on.log" : "demo-off.log");
  std::vector<std::string> arguments = {"--model",    options.model, "--share", share ? "on" : "off",
                                        "--kv-bytes", "512MiB"};
  if (options.threads > 0) {
    arguments.insert(arguments.end(), {"--threads", std::to_string(options.threads)});
  }
  ChildServer server(arguments, log);
  line.update(name + ": loading the model ...");
  server.wait_ready(kLoadTime, [] {});
  line.update(name + ": warming up ...");
  warm_up(server.endpoint());

  const nlohmann::json before = http_get_json(server.endpoint(), "/v1/cache/stats");
  DemoRun run;
  run.load = run_load(server.endpoint(), demo_requests(kAnswerTokens), [&](const LoadProgress& progress) {
    line.update(fmt::format("{}: {} of {} requests have their first token, {} are answered, {} pieces of text", name,
                            progress.started, kDemoQuestions.size(), progress.answered, progress.pieces));
  });
  const nlohmann::json after = http_get_json(server.endpoint(), "/v1/cache/stats");
  const auto grown = [&](const char* figure_name) {
    return figure(after, "tokens", figure_name) - figure(before, "tokens", figure_name);
  };
  run.prompt_tokens = grown("prompt");
  run.cached_tokens = grown("cached");
  run.computed_tokens = grown("computed");
  run.kv_bytes_peak = figure(after, "bytes", "peak");
  line.finish(
      fmt::format("{}: {} requests answered in {:.2f} s", name, kDemoQuestions.size(), run.load.wall_ms / 1000));
  return run;
}

int run_demo(DemoOptions options) try {
  if (options.out.empty()) options.out = own_path().replace_filename("demo.json").string();
  DemoReport report;
  report.model = std::filesystem::path(options.model).stem().string();
  report.questions.assign(kDemoQuestions.begin(), kDemoQuestions.end());
  report.on = run_once(options, true);
  report.off = run_once(options, false);
  fmt::print("{}", report.table());

  std::ofstream file(options.out);
  file << report.json().dump(2) << '\n';
  file.close();
  if (!file) throw std::runtime_error("cannot write " + options.out);
  fmt::print("\n  The figures are in {}\n", options.out);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "\ncoppice demo: {}\n", error.what());
  return 1;
}

}  // namespace

void add_demo(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command = app.add_subcommand("demo", "Eight requests at once on one shared prefix, sharing on and off");
  command->add_option("--model", options->model, "GGUF file")->required()->check(CLI::ExistingFile);
  command->add_option("--out", options->out, "Where the figures go as JSON (default: demo.json beside the program)");
  command->add_option("--threads", options->threads, "The server's compute threads")->check(CLI::PositiveNumber);
  command->callback([options, &exit_code] { exit_code = run_demo(*options); });
}

}  // namespace coppice::cli
