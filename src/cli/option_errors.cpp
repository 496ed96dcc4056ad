#include "cli/option_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/option_text.h"

namespace coppice::cli {

namespace {

/// How many letters must be put in, left out, replaced or swapped with the next to make `b` of `a`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before, above, row(b.size() + 1);  // for each beginning of `b`; each row for a letter more
  std::iota(row.begin(), row.end(), 0U);
  for (std::size_t i = 0; i < a.size(); ++i) {
    before = std::exchange(above, row);
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      row[j + 1] = std::min({above[j] + (a[i] == b[j] ? 0 : 1), row[j] + 1, above[j + 1] + 1});
      const bool swapped = i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j];
      if (swapped) row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

/// The command's options that may have been meant, the nearest first: mistyped, cut short, or with more words.
std::vector<std::string> nearest(const CLI::App& command, const std::string& wrong) {
  constexpr std::size_t kMost = 3;
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const OptionText& option : options_of(command)) {
    for (const std::string& name : option.names) {
      const std::size_t letters = distance(wrong, name);
      const std::size_t shorter = std::min(wrong.size(), name.size());
      const bool begins = shorter > 4 && wrong.compare(0, shorter, name, 0, shorter) == 0;
      if (shorter > 2 && (letters * 4 <= shorter || begins)) found.emplace_back(letters, name);
    }
  }
  std::ranges::sort(found);
  std::vector<std::string> names;
  for (auto& [letters, name] : found)
    if (names.size() < kMost) names.push_back(std::move(name));
  return names;
}

std::string unknown_text(const CLI::App& command) {
  const std::vector<std::string> extras = command.remaining();
  const auto option = std::ranges::find_if(extras, [](const std::string& e) { return e.size() > 1 && e[0] == '-'; });
  if (option == extras.end())
    return fmt::format("{} is one argument too many", extras.empty() ? "something" : extras.front());
  const std::string name = option->substr(0, option->find('='));
  const std::vector<std::string> near = nearest(command, name);
  const char* place = command.get_parent() == nullptr ? " before a command" : "";
  std::string text = fmt::format("{}: {} has no such option{}", name, command.get_name(), place);
  if (!near.empty()) text += fmt::format("; did you mean {}?", fmt::join(near, ", or "));
  return text;
}

/// Whether `option` is among the arguments: "--max-batch 8", "--max_batch=8".
bool is_given(const CLI::Option& option, const std::vector<std::string>& given) {
  return std::ranges::any_of(given, [&option](const std::string& argument) {
    std::string name = argument.substr(0, argument.find('='));
    std::ranges::replace(name, '_', '-');
    return name.starts_with('-') && option.check_name(name);
  });
}

/// "LLAMA_ARG_PORT: ..." for "--port: ...", where the value comes from the option's variable.
std::string name_variable(const CLI::App& command, const std::vector<std::string>& given, std::string text) {
  const std::size_t colon = std::min(text.find(": "), text.size());
  const CLI::Option* option = command.get_option_no_throw(text.substr(0, colon));
  if (option == nullptr || option->get_envname().empty() || is_given(*option, given)) return text;
  return std::getenv(option->get_envname().c_str()) == nullptr ? text : option->get_envname() + text.substr(colon);
}

/// CLI11's own words for two of the errors, put as it puts the others: the option's name first.
std::string plainer(const CLI::Error& error, std::string text) {
  // "--port: 1 required UINT:INT in [0 - 65535] missing"
  if (const auto colon = text.find(": 1 required "); error.get_name() == "ArgumentMismatch" && colon != text.npos)
    return text.substr(0, colon) + ": its value is missing";
  constexpr std::string_view kNotConverted = "Could not convert: ";  // "--verbose = perhaps"
  const std::size_t equals = text.find(" = ");
  if (!text.starts_with(kNotConverted) || equals == text.npos) return text;
  const std::string name = text.substr(kNotConverted.size(), equals - kNotConverted.size());
  return fmt::format("{}: {} is none of its values", name, text.substr(equals + 3));
}

}  // namespace

std::string error_text(const CLI::App& app, const std::vector<std::string>& given, const CLI::Error& error) {
  const std::string command = given.empty() ? "" : given.front();
  const std::vector<const CLI::App*> commands = app.get_subcommands(nullptr);
  const auto chosen = std::ranges::find(commands, command, [](const CLI::App* one) { return one->get_name(); });
  std::string text = plainer(error, error.what());
  std::string help = "'coppice --help' tells all commands.";
  if (!app.remaining().empty()) {
    text = unknown_text(app);
  } else if (chosen != commands.end()) {
    help = fmt::format("'coppice {} --help' tells all options.", command);
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) text = unknown_text(**chosen);
    text = name_variable(**chosen, given, std::move(text));
  }
  return fmt::format("{}\n{}\n", text, help);
}

}  // namespace coppice::cli
