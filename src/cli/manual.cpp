#include "cli/manual.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

#include "cli/option_text.h"

namespace coppice::cli {

namespace {

/// Text as troff prints it: a backslash, and a dash that can be copied; no line that troff takes for a request.
std::string plain(std::string_view text) {
  std::string out;
  if (text.starts_with('.') || text.starts_with('\'')) out += "\\&";
  for (const char c : text) {
    if (c == '-') {
      out += "\\-";
    } else if (c == '\\') {
      out += "\\e";
    } else {
      out += c;
    }
  }
  return out;
}

std::string bold(std::string_view text) {
  return fmt::format("\\fB{}\\fR", plain(text));
}

std::string title(std::string_view text) {
  std::string out = "\"";
  for (const char c : plain(text)) out += c == '"' ? '\'' : c;
  return out + '"';
}

/// "--ctx, -c N".
std::string heading(const OptionText& option) {
  std::string out;
  for (const std::string& name : option.names) out += (out.empty() ? "" : ", ") + bold(name);
  if (out.empty()) return fmt::format("\\fI{}\\fR", plain(option.positional));
  return option.unit.empty() ? out : fmt::format("{} \\fI{}\\fR", out, plain(option.unit));
}

void add_option(std::string& page, const OptionText& option) {
  page += fmt::format(".TP\n{}\n{}.", heading(option), plain(option.description));
  if (!option.positional.empty() && !option.names.empty()) page += " The name of the option may be left out.";
  if (!option.value.empty()) page += fmt::format(" Default: {}.", plain(option.value));
  if (!option.variable.empty()) page += fmt::format(" Environment: {}.", bold(option.variable));
  page += '\n';
}

void add_example(std::string& page, std::string_view name) {
  if (const auto example = example_of(name); !example.empty())
    page += fmt::format("For example\n.PP\n.nf\n    {}\n.fi\n", plain(example));
}

void add_command(std::string& page, const CLI::App& command) {
  page += fmt::format(".SH {}\n{}.\n", title("coppice " + command.get_name()), plain(command.get_description()));
  if (!example_of(command.get_name()).empty()) page += ".PP\n";
  add_example(page, command.get_name());
  std::string group;
  for (const OptionText& option : options_of(command)) {
    if (option.group != group) {
      group = option.group;
      page += fmt::format(".SS {}\n", title(group));
      add_example(page, group);
    }
    add_option(page, option);
  }
}

}  // namespace

std::string manual(const CLI::App& app) {
  std::string page =
      fmt::format(".TH COPPICE 1 \"\" \"coppice {}\" \"User Commands\"\n.SH NAME\n{}\n.SH SYNOPSIS\n", COPPICE_VERSION,
                  plain("coppice - an LLM server whose KV cache is one shared tree of blocks"));
  for (const CLI::App* command : commands_of(app))
    page += fmt::format("\\fBcoppice {}\\fR [\\fIOPTION\\fR]...\n.br\n", plain(command->get_name()));
  page += fmt::format("{} | {}\n", bold("coppice --help"), bold("--version"));
  for (const CLI::App* command : commands_of(app)) add_command(page, *command);
  page += fmt::format(
      ".SH \"EXIT STATUS\"\n0: all is well, or a signal ended the server. 1: something is wrong, and one line on "
      "standard "
      "error says what. 2: wrong options.\n.SH FILES\n.TP\n{}\nWhat the service {} serves, and how.\n"
      ".TP\n{}\nThe API, the options, keys and metrics at length.\n",
      bold("/etc/coppice/coppice.env"), bold("coppice.service"), bold("/usr/share/doc/coppice"));
  return page;
}

}  // namespace coppice::cli
