#include "cli/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cli/option_text.h"

namespace coppice::cli {

namespace {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = fmt::format("\n{}:", group);
    if (const auto example = example_of(group); !example.empty())
      text += fmt::format(" for example\n    {}\n", example);
    text += '\n';
    for (const CLI::Option* option : options) text += make_option(option, is_positional);
    return text;
  }

  std::string make_footer(const CLI::App* app) const override {
    if (app->get_parent() == nullptr) return CLI::Formatter::make_footer(app);
    const auto example = example_of(app->get_name());
    return example.empty() ? "" : fmt::format("For example\n    {}\n", example);
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const OptionText text = describe(*option);
    if (text.unit.empty()) return {};
    return " " + text.unit + (text.value.empty() ? "" : " (" + text.value + ")");
  }
};

}  // namespace

void set_help(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(
      "For example\n"
      "    coppice models                # what this machine has\n"
      "    coppice serve llama3.2:1b     # then see http://127.0.0.1:8080/\n"
      "coppice COMMAND --help tells a command's options.");
}

}  // namespace coppice::cli
