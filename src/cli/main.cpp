// coppice: an LLM server whose KV cache is one shared tree of blocks.
//
// A new command: its add_...() in a file beside this one (models.cpp), and its line in kCommands. Man page and
// completions are made of its help.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/bench.h"
#include "cli/cache.h"
#include "cli/chat.h"
#include "cli/demo.h"
#include "cli/generate.h"
#include "cli/help.h"
#include "cli/models.h"
#include "cli/option_errors.h"
#include "cli/option_text.h"
#include "cli/other_servers.h"
#include "cli/other_variables.h"
#include "cli/pull.h"
#include "cli/serve.h"
#include "cli/version.h"
#include "port/certificates.h"
#include "port/process.h"

namespace {

/// A command adds itself to the app; when it is chosen, parsing runs it.
using AddCommand = void (*)(CLI::App& app, int& exit_code);

constexpr AddCommand kCommands[] = {coppice::cli::add_serve, coppice::cli::add_chat,    coppice::cli::add_models,
                                    coppice::cli::add_pull,  coppice::cli::add_cache,   coppice::cli::add_demo,
                                    coppice::cli::add_bench, coppice::cli::add_generate};

/// One line, without taking memory.
void print_failure(const std::exception_ptr& failure) noexcept {
  try {
    std::rethrow_exception(failure);
  } catch (const std::bad_alloc&) {
    std::fputs("coppice: out of memory\n", stderr);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::resource_unavailable_try_again) {  // of a thread's constructor
      std::fputs(
          "coppice: Cannot start a thread: the limit of this user or container is reached (ulimit -u, pids.max).\n",
          stderr);
    } else {
      std::fprintf(stderr, "coppice: %s\n", e.what());
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "coppice: %s\n", e.what());
  } catch (...) {
    std::fputs("coppice: an unknown failure\n", stderr);
  }
}

/// Those behind `serve`, also of other servers, and what their variables stand for.
std::vector<std::string> serve_arguments(std::vector<std::string> given, const CLI::App& command) {
  std::vector<std::string> arguments = {"serve"};
  std::ranges::move(coppice::cli::flags_of_variables(command, given), std::back_inserter(arguments));
  std::ranges::move(coppice::cli::read_other_servers(std::move(given), command), std::back_inserter(arguments));
  return arguments;
}

/// As CLI11 wants them: the last first. "help serve" and "version" are what people try first.
std::vector<std::string> arguments_of(const CLI::App& app, std::vector<std::string> arguments) {
  if (!arguments.empty() && arguments.front() == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  } else if (arguments == std::vector<std::string>{"version"}) {
    arguments = {"--version"};
  }
  if (!arguments.empty() && arguments.front() == "serve")
    arguments = serve_arguments({arguments.begin() + 1, arguments.end()}, *app.get_subcommand("serve"));
  std::ranges::reverse(arguments);
  return arguments;
}

/// CLI11 says only that a subcommand is required, also of one that is mistyped. `arguments`: the last first.
void check_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::string given = arguments.empty() ? "" : arguments.back();
  std::vector<std::string> names;
  for (const CLI::App* command : coppice::cli::commands_of(app)) names.push_back(command->get_name());
  if (given.starts_with('-') || std::ranges::find(names, given) != names.end()) return;
  const std::string wrong = given.empty() ? "Which command?" : "There is no command '" + given + "'.";
  throw CLI::ParseError(wrong + " These are there: " + CLI::detail::join(names, ", "), CLI::ExitCodes::RequiredError);
}

}  // namespace

int main(int argc, char** argv) {
  coppice::port::open_standard_descriptors();
  coppice::port::find_certificates();
  std::set_terminate([] {  // an exception that nobody caught, on whichever thread
    if (const auto failure = std::current_exception()) print_failure(failure);
    std::abort();
  });
  CLI::App app("coppice: serves GGUF models from one shared tree of KV blocks", "coppice");
  app.set_version_flag("--version,-V", coppice::cli::version_text,
                       "Print version, commit and instruction sets, and exit");
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // scripts append to their defaults
  const std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  app.failure_message(
      [&given](const CLI::App* all, const CLI::Error& error) { return coppice::cli::error_text(*all, given, error); });
  coppice::cli::set_help(app);
  int exit_code = 0;
  for (const AddCommand add : kCommands) add(app, exit_code);
  try {
    std::vector<std::string> arguments = arguments_of(app, given);
    check_command(app, arguments);
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (...) {
    print_failure(std::current_exception());
    return 1;
  }
  return exit_code;
}
