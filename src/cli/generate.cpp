#include "cli/generate.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "cli/completion.h"
#include "cli/manual.h"

namespace coppice::cli {

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Print the man page, or what completes command lines in a shell");
  auto what = std::make_shared<std::string>();
  command->add_option("what", *what, "The man page, or the shell: eval \"$(coppice generate bash)\"")
      ->required()
      ->check(CLI::IsMember({"man", "bash", "zsh", "fish"}));
  command->callback([what, &app, &exit_code] {
    fmt::print("{}", *what == "man" ? manual(app) : completion(app, *what));
    exit_code = 0;
  });
}

}  // namespace coppice::cli
