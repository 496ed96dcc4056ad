#include "cli/other_variables.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "cli/needless_flags.h"
#include "cli/other_servers.h"
#include "cli/which_model.h"
#include "port/process.h"

namespace coppice::cli {
namespace {

constexpr std::string_view kPrefix = "LLAMA_ARG_";

/// Others are named as their options are. Names without kPrefix.
constexpr std::pair<std::string_view, std::string_view> kOptions[] = {
    {"UBATCH", "ubatch-size"},
    {"ROPE_SCALING_TYPE", "rope-scaling"},
    {"STATIC_PATH", "path"},
    {"CHECKPOINT_MIN_SPACING_NT", "checkpoint-min-step"},
    {"THINK_BUDGET_MESSAGE", "reasoning-budget-message"},
    {"ENDPOINT_METRICS", "metrics"},
    {"ENDPOINT_PROPS", "props"},
    {"ENDPOINT_SLOTS", "slots"},
};

constexpr std::string_view kOn[] = {"1", "true", "on", "enabled", "yes"};
constexpr std::string_view kOff[] = {"0", "false", "off", "disabled", "no"};

bool is_among(std::span<const std::string_view> words, std::string_view value) {
  const auto same = [](unsigned char a, unsigned char b) { return std::tolower(a) == std::tolower(b); };
  return std::ranges::any_of(words, [&](std::string_view word) { return std::ranges::equal(word, value, same); });
}

/// What a variable asks for.
struct Wish {
  std::string variable, value;
  std::string option, contrary;  ///< "--slots", "--no-slots"
  bool off = false;              ///< it asks for the contrary
  bool clear = false;            ///< its value is a word for on or off
};

Wish read_wish(const std::string& variable, std::string_view value) {
  std::string_view name = std::string_view(variable).substr(kPrefix.size());
  const bool negated = name.starts_with("NO_");  // then llama-server doesn't look at the value
  if (negated) name.remove_prefix(3);
  std::string option;
  const auto* found = std::ranges::find(kOptions, name, &std::pair<std::string_view, std::string_view>::first);
  if (found != std::end(kOptions)) {
    option = found->second;
  } else {
    for (const unsigned char c : name) option += c == '_' ? '-' : static_cast<char>(std::tolower(c));
  }
  const bool off = negated || is_among(kOff, value);
  return {variable, std::string(value), "--" + option, "--no-" + option, off, off || is_among(kOn, value)};
}

/// Of variables that are set, not empty, and read by no option; by their names.
std::vector<Wish> unread_wishes(const CLI::App& command) {
  std::vector<Wish> wishes;
  for (char** variable = port::environment(); variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = std::min(text.find('='), text.size());
    if (!text.starts_with(kPrefix) || equals + 1 >= text.size()) continue;
    const std::string name(text.substr(0, equals));
    const auto reads = [&](const CLI::Option* option) { return option->get_envname() == name; };
    if (std::ranges::none_of(command.get_options(), reads)) wishes.push_back(read_wish(name, text.substr(equals + 1)));
  }
  std::ranges::sort(wishes, {}, &Wish::variable);
  return wishes;
}

enum class Flag : std::uint8_t { kNone, kNeedless, kOurs };

Flag flag_of(const CLI::App& command, const std::string& name) {
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr || option->get_expected_max() > 0) return Flag::kNone;
  return option->get_group() == kNeedlessGroup ? Flag::kNeedless : Flag::kOurs;
}

/// Whether it is so here anyway, or a flag of ours does it.
bool is_met(const CLI::App& command, const Wish& wish) {
  if (const auto meaning = meaning_of(wish.option, wish.value)) {
    if (!meaning->refusal.empty() || meaning->value.empty()) return meaning->refusal.empty();
    const std::vector<std::string> chosen = command.get_option(meaning->option)->results();
    return chosen.empty() || chosen.back() == meaning->value;
  }
  if (!wish.off) return flag_of(command, wish.option) == Flag::kNeedless;
  if (flag_of(command, wish.contrary) != Flag::kNone) return true;
  // "--embeddings" off means only that nobody asks for them; but "--no-jinja" is answered.
  return flag_of(command, wish.option) == Flag::kNeedless && instead_of(wish.contrary).empty();
}

std::string hint_of(const Wish& wish) {
  if (const auto meaning = meaning_of(wish.option, wish.value)) return meaning->refusal;
  if (wish.variable == "LLAMA_ARG_CHAT_TEMPLATE")
    return "LLAMA_ARG_CHAT_TEMPLATE_FILE names a file with a template; without it the model's own is used";
  const std::string_view contrary = wish.off ? instead_of(wish.contrary) : std::string_view();
  return std::string(contrary.empty() ? instead_of(wish.option) : contrary);
}

std::string complaint_about(const Wish& wish) {
  const std::string hint = hint_of(wish);
  return fmt::format("{} is set, and has no effect here{}{}", wish.variable, hint.empty() ? "" : "; ", hint);
}

bool is_set(const std::string& variable) {
  const char* value = variable.empty() ? nullptr : std::getenv(variable.c_str());
  return value != nullptr && *value != '\0';
}

/// Of llama-server's that say which model.
bool names_model(const Wish& wish) {
  return wish.option == "--hf-repo" || wish.option == "--hf-file" || wish.option == "--model-url" ||
         wish.option == "--docker-repo";
}

/// Whether an option of the other servers is among them that stands for this one of ours.
bool means(const std::vector<std::string>& arguments, const std::string& option) {
  return std::ranges::any_of(arguments, [&option](const std::string& argument) {
    const auto meaning = meaning_of(argument.substr(0, argument.find('=')), "");
    return meaning && meaning->option == option;
  });
}

}  // namespace

std::vector<std::string> flags_of_variables(const CLI::App& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> flags;
  for (Wish& wish : unread_wishes(command)) {
    const Meaning meaning = meaning_of(wish.option, wish.value).value_or(Meaning());
    // The variable of the option itself goes first.
    const bool free = !meaning.value.empty() && !is_set(command.get_option(meaning.option)->get_envname());
    if (free && !means(arguments, meaning.option)) flags.insert(flags.end(), {meaning.option, meaning.value});
    const bool ours = flag_of(command, wish.contrary) == Flag::kOurs;
    if (ours && !wish.clear)
      throw CLI::ValidationError(wish.variable, fmt::format("{} is neither on nor off", wish.value));
    if (ours && wish.off && std::ranges::find(arguments, wish.option) == arguments.end())
      flags.push_back(std::move(wish.contrary));
  }
  return flags;
}

std::vector<std::string> complaints_about_variables(const CLI::App& command) {
  std::vector<std::string> complaints;
  for (const Wish& wish : unread_wishes(command)) {
    if (is_met(command, wish)) continue;
    complaints.push_back(complaint_about(wish));
    // The log isn't written yet: what ends for want of a model says why itself.
    if (names_model(wish) && command.get_option("--model")->empty())
      throw CLI::ParseError(fmt::format("Which model? {}. {}", complaints.back(), models_to_choose()),
                            CLI::ExitCodes::RequiredError);
  }
  return complaints;
}

}  // namespace coppice::cli
