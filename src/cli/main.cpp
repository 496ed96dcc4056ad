// coppice: an LLM server whose KV cache is one shared tree of blocks.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/bench.h"
#include "cli/demo.h"
#include "cli/load_command.h"
#include "cli/serve.h"

namespace {

/// A command adds itself to the app; when it is chosen, parsing runs it.
using AddCommand = void (*)(CLI::App& app, int& exit_code);

constexpr AddCommand kCommands[] = {
    coppice::cli::add_serve,
    coppice::cli::add_demo,
    coppice::cli::add_load,
    coppice::cli::add_bench,
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("coppice: serves GGUF models from one shared tree of KV blocks", "coppice");
  app.set_version_flag("--version", "coppice " COPPICE_VERSION);
  app.require_subcommand(1);
  int exit_code = 0;
  for (const AddCommand add : kCommands) add(app, exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  } catch (const std::exception& e) {
    // fmt::print would throw if the message cannot be written.
    std::fputs(fmt::format("coppice: {}\n", e.what()).c_str(), stderr);
    return 1;
  }
  return exit_code;
}
