#include "cli/help.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::cli {

namespace {

/// Of the group of this name.
constexpr std::pair<std::string_view, std::string_view> kExamples[] = {
    {"Model", "coppice serve ~/models/qwen3-4b-q4_k_m.gguf --ctx 16384"},
    {"Cache and scheduling", "coppice serve FILE --kv-bytes 8GiB --kv-format int8 --max-batch 64"},
    {"Network", "coppice serve FILE --host 0.0.0.0 --port 9000 --api-keys keys.txt"},
    {"For requests that don't say", "coppice serve FILE --temp 0.7 --top-p 0.9 -n 512"},
};

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// CLI11 writes types and checks: "UINT:SIZE [b, kb(=1000b), ...]", "TEXT:{on,off}".
std::string unit_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_expected_max() == 0) return {};  // a flag
  const auto open = type.find('{'), close = type.find('}');
  if (open != std::string::npos && close != std::string::npos && !has(type, " in [")) {
    std::string choices = type.substr(open + 1, close - open - 1);
    std::ranges::replace(choices, ',', '|');
    return choices;
  }
  for (const char* unit : {"SECONDS", "SIZE", "FILE", "DIR"}) {
    if (has(type, unit)) return unit;
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

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  std::string make_group(std::string group, bool is_positional,
                         std::vector<const CLI::Option*> options) const override {
    std::string text = fmt::format("\n{}:", group);
    const auto* example = std::ranges::find(kExamples, group, &std::pair<std::string_view, std::string_view>::first);
    if (example != std::end(kExamples)) text += fmt::format(" for example\n    {}\n", example->second);
    text += '\n';
    for (const CLI::Option* option : options) text += make_option(option, is_positional);
    return text;
  }

  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string unit = unit_of(*option);
    if (unit.empty()) return {};
    const std::string value = default_of(*option, unit);
    return " " + unit + (value.empty() ? "" : " (" + value + ")");
  }
};

}  // namespace

void set_help(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer("coppice COMMAND --help tells a command's options.");
}

}  // namespace coppice::cli
