#include "cli/demo.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

#include "cli/child_server.h"
#include "cli/demo_burst.h"
#include "cli/demo_restart.h"
#include "cli/demo_text.h"
#include "cli/devices.h"
#include "cli/local_models.h"
#include "cli/which_model.h"

namespace coppice::cli {
namespace {

namespace fs = std::filesystem;

struct DemoOptions {
  std::string model;
  int threads = 0;
  std::string device = "auto";
  bool print_requests = false;
  bool restart = false;
  int tokens = 8000;
};

std::vector<std::string> common_arguments(const DemoOptions& options) {
  std::vector<std::string> arguments = {"--model", options.model, "--kv-bytes", "512MiB", "--device", options.device};
  if (options.threads > 0) arguments.insert(arguments.end(), {"--threads", std::to_string(options.threads)});
  return arguments;
}

/// For what a run makes: our own folder, or one of its own where that can't be written.
struct Scratch {
  fs::path folder;
  bool is_temporary = false;
};

Scratch make_scratch() {
  const fs::path own = own_folder();
  const bool is_somewhere = own.is_absolute();  // without a home folder it would be wherever we were started
  std::error_code error;
  if (is_somewhere) fs::create_directories(own, error);
  if (is_somewhere && !error && ::access(own.c_str(), W_OK | X_OK) == 0) return {.folder = own};
  std::string name = fs::temp_directory_path() / "coppice-demo-XXXXXX";
  if (::mkdtemp(name.data()) == nullptr)
    throw std::runtime_error(fmt::format("cannot make a folder {}: {}", name, std::strerror(errno)));
  return {.folder = name, .is_temporary = true};
}

BurstResult run_once(const DemoOptions& options, const fs::path& folder, bool share) {
  const std::string_view name = share ? "on" : "off";
  const fs::path log = folder / fmt::format("demo-{}.log", name);
  std::vector<std::string> arguments = common_arguments(options);
  arguments.insert(arguments.end(), {"--share", std::string(name)});
  fmt::print(stderr, "  sharing {}: loading the model and answering ...\n", name);
  const ChildServer server(arguments, log);
  return run_demo_burst(server.port());
}

/// 12345678 -> "12,345,678".
std::string grouped(double n) {
  std::string digits = fmt::format("{:.0f}", n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}
std::string mib(double bytes) {
  return fmt::format("{:.1f} MiB", bytes / (1 << 20));
}
std::string seconds(double s) {
  return fmt::format("{:.2f} s", s);
}
std::string rate(double per_second) {
  return fmt::format("{:.1f}", per_second);
}

/// A line of the table; with a word, how many times the larger figure is the smaller one.
void print_row(std::string_view label, std::string (*text)(double), double on, double off, std::string_view word = "") {
  fmt::print("  {:<24}{:>14}{:>14}", label, text(on), text(off));
  if (!word.empty() && on > 0 && off > 0) fmt::print("   {:.1f}x {}", std::max(on, off) / std::min(on, off), word);
  fmt::print("\n");
}

double median(const std::vector<double>& ascending) {
  return (ascending[(ascending.size() - 1) / 2] + ascending[ascending.size() / 2]) / 2;
}

void print_table(const std::string& model, const BurstResult& on, const BurstResult& off) {
  const auto number = [](std::int64_t n) { return static_cast<double>(n); };
  fmt::print("\n  {} requests at once, one shared system prompt, {}\n\n", kDemoQuestions.size(), model);
  fmt::print("  {:<24}{:>14}{:>14}\n", "", "sharing on", "sharing off");
  print_row("tokens in the prompts", grouped, number(on.prompt_tokens), number(off.prompt_tokens));
  print_row("tokens computed", grouped, number(on.computed_tokens), number(off.computed_tokens), "fewer");
  print_row("tokens reused", grouped, number(on.cached_tokens), number(off.cached_tokens));
  print_row("KV memory at peak", mib, number(on.kv_bytes_peak), number(off.kv_bytes_peak), "less");
  print_row("first token, median", seconds, median(on.first_token), median(off.first_token), "sooner");
  print_row("first token, slowest", seconds, on.first_token.back(), off.first_token.back(), "sooner");
  print_row("total time", seconds, on.total, off.total, "faster");
  print_row("output tokens/s", rate, number(on.generated_tokens) / on.total, number(off.generated_tokens) / off.total,
            "more");
}

/// One line of at most 96 characters (UTF-8), cut at a word.
std::string shortened(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  int characters = 0;
  std::size_t last_space = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) == 0x80U) continue;  // inside a character
    if (text[i] == ' ') last_space = i;
    if (++characters > 96) return text.substr(0, last_space > 0 ? last_space : i) + " …";
  }
  return text;
}

void print_answers(const BurstResult& on, const BurstResult& off) {
  int same = 0;
  for (std::size_t i = 0; i < on.answers.size(); ++i) same += on.answers[i] == off.answers[i] ? 1 : 0;
  fmt::print(
      "\n  The answers with sharing on. {} of {} are the same, letter for letter, with sharing off: another batch\n"
      "  rounds the products of 4-bit weights differently, and greedy text then goes another way.\n",
      same, on.answers.size());
  for (std::size_t i = 0; i < on.answers.size(); ++i) {
    fmt::print("  {}. {}\n     {}\n", i + 1, kDemoQuestions[i], shortened(on.answers[i]));
  }
}

void run_bursts(const DemoOptions& options, const fs::path& folder) {
  const BurstResult on = run_once(options, folder, true), off = run_once(options, folder, false);
  print_table(fs::path(options.model).stem().string(), on, off);
  print_answers(on, off);
}

int run_demo(DemoOptions options) {
  if (options.print_requests) {
    for (const std::string& body : demo_requests()) fmt::print("{}\n", body);
    return 0;
  }
  if (options.model.empty())
    throw CLI::ParseError(fmt::format("Which model? {}", models_to_choose()), CLI::ExitCodes::RequiredError);
  options.model = find_model(options.model).path.string();
  ::unsetenv("LLAMA_API_KEY");  // the servers would want it, and the requests have none
  const Scratch scratch = make_scratch();
  if (options.restart) {
    run_demo_restart(common_arguments(options), scratch.folder / "demo-kv", options.tokens);
  } else {
    run_bursts(options, scratch.folder);
  }
  std::error_code ignored;
  if (scratch.is_temporary) fs::remove_all(scratch.folder, ignored);  // after a failure its logs stay
  return 0;
}

}  // namespace

void add_demo(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<DemoOptions>();
  CLI::App* command = app.add_subcommand("demo", "Send eight requests on one prefix at once, with sharing on and off");
  command->add_option("--model,-m,model", options->model, "GGUF file, a folder with one, or a local model's name");
  command->add_option("--device", options->device, "What computes: as serve's")
      ->check(CLI::Validator(check_device, ""))
      ->capture_default_str();
  command->add_option("--threads,-t", options->threads, "Compute threads of the server (default: one for each core)")
      ->check(CLI::PositiveNumber);
  command->add_flag("--requests", options->print_requests, "Only print the requests' JSON bodies, one a line");
  command->add_flag("--restart", options->restart,
                    "Instead: one long prompt's first token, computed, from the pool, and after the server was killed");
  command->add_option("--tokens", options->tokens, "Of that prompt")
      ->check(CLI::Range(64, 1 << 20))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = run_demo(*options); });
}

}  // namespace coppice::cli
