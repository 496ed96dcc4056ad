#include "cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "cli/option_text.h"

namespace coppice::cli {

namespace {

/// With `quote` around it; inside, `escape` in place of it.
std::string quoted(std::string_view text, std::string_view escape) {
  std::string out = "'";
  for (const char c : text) c == '\'' ? out += escape : out += c;
  return out + "'";
}

std::vector<std::string> names_of(const std::vector<OptionText>& options) {
  std::vector<std::string> names;
  for (const OptionText& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return names;
}

/// The argument without an option's name before it, if shells can propose something for it.
const OptionText* argument_of(const std::vector<OptionText>& options) {
  for (const OptionText& option : options) {
    if (!option.positional.empty() && (option.file || option.folder || !option.choices.empty())) return &option;
  }
  return nullptr;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands_of(app)) names.push_back(command->get_name());
  return names;
}

// bash: a case for what stands before, then one for the names that may follow.

constexpr std::string_view kBashHead = R"(# bash completion of coppice, made by 'coppice generate bash'.
_coppice() {{
  local now=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case $word in {}) command=$word; break ;; esac
  done
  COMPREPLY=()
  case $command:$before in
)";

constexpr std::string_view kBashFiles = "compopt -o filenames; mapfile -t COMPREPLY < <(compgen -{} -- \"$now\")";

std::string bash_values(const OptionText& option) {
  if (!option.choices.empty())
    return fmt::format("mapfile -t COMPREPLY < <(compgen -W '{}' -- \"$now\")", fmt::join(option.choices, " "));
  if (option.file || option.folder) return fmt::format(kBashFiles, option.file ? 'f' : 'd');
  return "";
}

std::string bash(const CLI::App& app) {
  std::string script = fmt::format(kBashHead, fmt::join(command_names(app), "|")), names;
  for (const CLI::App* command : commands_of(app)) {
    const auto options = options_of(*command);
    for (const OptionText& option : options) {
      if (option.unit.empty() || option.names.empty()) continue;
      std::vector<std::string> places;
      for (const std::string& name : option.names) places.push_back(command->get_name() + ":" + name);
      script += fmt::format("    {}) {}; return ;;\n", fmt::join(places, "|"), bash_values(option));
    }
    const OptionText* argument = argument_of(options);
    names += fmt::format("    {}) words='{}'", command->get_name(), fmt::join(names_of(options), " "));
    if (argument != nullptr) names += fmt::format("; [[ $now == -* ]] || {{ {}; return; }}", bash_values(*argument));
    names += " ;;\n";
  }
  script += "  esac\n  local words\n  case $command in\n" + names;
  script += fmt::format("    *) words='{} {}' ;;\n", fmt::join(command_names(app), " "),
                        fmt::join(names_of(options_of(app)), " "));
  script += "  esac\n  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$now\")\n}\ncomplete -F _coppice coppice\n";
  // Nothing is proposed for free text.
  for (std::size_t at = 0; (at = script.find(") ; return", at)) != std::string::npos;)
    script.replace(at, 10, ") return");
  return script;
}

// zsh: _arguments with a line for each option.

/// In a specification of _arguments brackets and colons have a meaning.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_values(const OptionText& option) {
  if (option.file) return "_files";
  if (option.folder) return "_files -/";
  return option.choices.empty() ? " " : fmt::format("({})", fmt::join(option.choices, " "));
}

std::string zsh_arguments(const std::vector<OptionText>& options) {
  std::string lines;
  for (const OptionText& option : options) {
    const std::string text = zsh_text(option.description);
    for (const std::string& name : option.names) {
      auto spec = fmt::format("({}){}[{}]", fmt::join(option.names, " "), name, text);
      if (!option.unit.empty())
        spec += fmt::format(":{}:{}", option.choices.empty() ? option.unit : "value", zsh_values(option));
      lines += fmt::format(" \\\n        {}", quoted(spec, "'\\''"));
    }
    if (!option.positional.empty())
      lines += fmt::format(" \\\n        {}",
                           quoted(fmt::format("::{}:{}", option.positional, zsh_values(option)), "'\\''"));
  }
  return lines;
}

std::string zsh(const CLI::App& app) {
  std::string commands, cases;
  for (const CLI::App* command : commands_of(app)) {
    commands += fmt::format(
        "    {}\n", quoted(fmt::format("{}:{}", command->get_name(), zsh_text(command->get_description())), "'\\''"));
    cases += fmt::format("      {})\n        _arguments{}\n        ;;\n", command->get_name(),
                         zsh_arguments(options_of(*command)));
  }
  return fmt::format(
      "#compdef coppice\n# zsh completion of coppice, made by 'coppice generate zsh'.\n_coppice() {{\n"
      "  local curcontext=$curcontext state line\n  typeset -A opt_args\n  local -a commands=(\n{}  )\n"
      "  _arguments -C{} \\\n        '1:command:->command' '*::argument:->argument'\n  case $state in\n"
      "    command) _describe command commands ;;\n    argument)\n      case $words[1] in\n{}      esac\n      ;;\n  "
      "esac\n}}\n"
      "if [[ $funcstack[1] == _coppice ]]; then _coppice \"$@\"; else compdef _coppice coppice; fi\n",
      commands, zsh_arguments(options_of(app)), cases);
}

// fish: a line for each option.

std::string fish_values(const OptionText& option) {
  if (!option.choices.empty()) return fmt::format("-a '{}'", fmt::join(option.choices, " "));
  return option.folder ? "-a '(__fish_complete_directories)'" : "-F";
}

std::string fish_option(std::string_view condition, const OptionText& option) {
  if (option.names.empty()) return "";
  std::string line = fmt::format("complete -c coppice -n {}", condition);
  for (const std::string& name : option.names)
    line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  const bool known = option.file || option.folder || !option.choices.empty();
  if (!option.unit.empty()) line += option.file ? " -r " : " -x ";
  if (known) line += fish_values(option);
  return line + " -d " + quoted(option.description, "\\'") + "\n";
}

std::string fish(const CLI::App& app) {
  std::string script = "# fish completion of coppice, made by 'coppice generate fish'.\ncomplete -c coppice -f\n";
  const std::string_view begin = "__fish_use_subcommand";
  for (const OptionText& option : options_of(app)) script += fish_option(begin, option);
  for (const CLI::App* command : commands_of(app)) {
    const std::string chosen = fmt::format("'__fish_seen_subcommand_from {}'", command->get_name());
    const auto options = options_of(*command);
    script += fmt::format("complete -c coppice -n {} -a {} -d {}\n", begin, command->get_name(),
                          quoted(command->get_description(), "\\'"));
    if (const OptionText* argument = argument_of(options))
      script += fmt::format("complete -c coppice -n {} {}\n", chosen, fish_values(*argument));
    for (const OptionText& option : options) script += fish_option(chosen, option);
  }
  return script;
}

}  // namespace

std::string completion(const CLI::App& app, std::string_view shell) {
  if (shell == "bash") return bash(app);
  return shell == "zsh" ? zsh(app) : fish(app);
}

}  // namespace coppice::cli
