// The commands' options in words, as CLI11 knows them: what --help, the man page and the shells' completions are made
// from.
#pragma once

#include <CLI/App.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::cli {

/// One option, a flag, or a positional argument.
struct OptionText {
  std::vector<std::string> names;  ///< with their dashes, long ones first; none: only positional
  std::string positional;          ///< the name of the argument that it may be, too; empty: it must be named
  std::string group;
  std::string unit;  ///< of the value: "N", "SIZE", "SECONDS", "FILE", "DIR", "TEXT", "a|b"; empty: a flag
  std::vector<std::string> choices;  ///< the values that it takes, if they are few
  std::string value;                 ///< by default, as people write it: "16MiB"
  std::string variable;              ///< of the environment, that says the same
  std::string description;
  bool file = false, folder = false;  ///< whether the value is one
};

OptionText describe(const CLI::Option& option);

/// All that --help shows, by groups, in the order in which they were added.
std::vector<OptionText> options_of(const CLI::App& command);

/// The commands of the app, without hidden ones.
std::vector<const CLI::App*> commands_of(const CLI::App& app);

/// A command line that shows the options of a group, or those of a command without groups. Empty: there is none.
std::string_view example_of(std::string_view name);

}  // namespace coppice::cli
