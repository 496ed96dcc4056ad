#include "cli/option_text.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

namespace coppice::cli {

namespace {

/// Of the group, or of the command, of this name.
constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"Model", "coppice serve ~/models/qwen3-4b-q4_k_m.gguf --ctx 16384"},
    {"Cache and scheduling", "coppice serve FILE --kv-bytes 8GiB --kv-format int8 --max-batch 64"},
    {"Network", "coppice serve FILE --host 0.0.0.0 --port 9000 --api-keys keys.txt"},
    {"For requests that don't say", "coppice serve FILE --temp 0.7 --top-p 0.9 -n 512"},
    {"chat", "coppice chat qwen3-4b --system 'Answer in one sentence.'"},
    {"models", "coppice models /srv/models"},
    {"cache", "coppice cache prune /var/cache/coppice --unused-for 7d"},
    {"demo", "coppice demo --model ~/models/qwen3-4b-q4_k_m.gguf"},
    {"bench", "coppice bench --model ~/models/qwen3-4b-q4_k_m.gguf --case batch"},
    {"generate", "coppice generate man | man -l -"},
};

/// CLI11 writes types and checks: "UINT:SIZE [b, kb(=1000b), ...]", "TEXT:{on,off}". Those of a set:
std::vector<std::string> choices_in(const std::string& type) {
  const auto open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos || type.contains(" in [")) return {};
  std::vector<std::string> choices = CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
  for (std::string& choice : choices) choice = choice.substr(0, choice.find("->"));  // "on->1": what a name stands for
  return choices;
}

std::string unit_in(const std::string& type, const std::vector<std::string>& choices) {
  if (!choices.empty()) return fmt::format("{}", fmt::join(choices, "|"));
  for (const char* unit : {"SECONDS", "SIZE", "FILE", "DIR"}) {
    if (type.contains(unit)) return unit;
  }
  if (type.starts_with("INT") || type.starts_with("UINT")) return "N";
  return type.starts_with("FLOAT") ? "NUMBER" : "TEXT";
}

/// "16MiB" of the bytes as CLI11 remembers them.
std::string default_of(const CLI::Option& option, std::string_view unit) {
  constexpr std::uint64_t kMiB = 1 << 20;
  std::string value = option.get_default_str();
  std::uint64_t bytes = 0;
  if (unit == "SIZE" && CLI::detail::lexical_cast(value, bytes) && bytes > 0 && bytes % kMiB == 0)
    value = fmt::format("{}MiB", bytes / kMiB);
  return value;
}

}  // namespace

OptionText describe(const CLI::Option& option) {
  OptionText text;
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  if (option.get_positional()) text.positional = option.get_name(true);
  text.group = option.get_group();
  text.variable = option.get_envname();
  text.description = option.get_description();
  if (option.get_expected_max() == 0) return text;  // a flag
  const std::string type = option.get_type_name();
  text.choices = choices_in(type);
  text.unit = unit_in(type, text.choices);
  text.value = default_of(option, text.unit);
  text.file = text.unit == "FILE" || text.positional == "model";
  text.folder = text.unit == "DIR";
  return text;
}

std::vector<OptionText> options_of(const CLI::App& command) {
  std::vector<OptionText> texts;
  for (const std::string& group : command.get_groups()) {
    for (const CLI::Option* option : command.get_options()) {
      if (!group.empty() && option->get_group() == group) texts.push_back(describe(*option));
    }
  }
  return texts;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App* command) { return !command->get_group().empty(); });
}

std::string_view example_of(std::string_view name) {
  const auto* found = std::ranges::find(kExamples, name, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kExamples) ? std::string_view() : found->second;
}

}  // namespace coppice::cli
