#include "cli/demo_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

namespace coppice::cli {
namespace {

constexpr int kLabelWidth = 24;
constexpr int kValueWidth = 14;
constexpr int kTextWidth = 96;  ///< characters of an answer that are shown

/// 12345678 -> "12,345,678".
std::string grouped(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string mib(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}
std::string seconds(double ms) {
  return fmt::format("{:.2f} s", ms / 1000);
}

/// "7.3x fewer"; empty when there is nothing to compare.
std::string ratio(double larger, double smaller, std::string_view word) {
  if (larger <= 0 || smaller <= 0) return "";
  return fmt::format("{:.1f}x {}", larger / smaller, word);
}

std::string row(std::string_view label, std::string_view on, std::string_view off, std::string_view note) {
  std::string line =
      fmt::format("  {:<{}}{:>{}}{:>{}}   {}", label, kLabelWidth, on, kValueWidth, off, kValueWidth, note);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

/// One line of at most kTextWidth characters (UTF-8), cut at a word.
std::string shortened(const std::string& text) {
  std::string line = text;
  std::replace(line.begin(), line.end(), '\n', ' ');
  int characters = 0;
  std::size_t last_space = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if ((static_cast<unsigned char>(line[i]) & 0xC0U) == 0x80U) continue;  // inside a character
    if (line[i] == ' ') last_space = i;
    if (++characters > kTextWidth) return line.substr(0, last_space > 0 ? last_space : i) + " …";
  }
  return line;
}

nlohmann::ordered_json run_json(const DemoRun& run) {
  const auto tenths = [](double value) {
    return static_cast<double>(static_cast<std::int64_t>(value * 10 + 0.5)) / 10;
  };
  return {
      {"prompt_tokens", run.prompt_tokens},
      {"computed_tokens", run.computed_tokens},
      {"cached_tokens", run.cached_tokens},
      {"kv_bytes_peak", run.kv_bytes_peak},
      {"ttft_ms_p50", tenths(run.load.ttft_p50_ms())},
      {"ttft_ms_max", tenths(run.load.ttft_max_ms())},
      {"wall_ms", tenths(run.load.wall_ms)},
      {"output_tokens_per_s", tenths(run.load.output_tokens_per_s())},
  };
}

}  // namespace

int DemoReport::identical_answers() const {
  int same = 0;
  for (std::size_t i = 0; i < on.load.answers.size(); ++i) {
    if (on.load.answers[i].text == off.load.answers[i].text) ++same;
  }
  return same;
}

std::string DemoReport::table() const {
  const auto count = [](std::int64_t n) { return static_cast<double>(n); };
  std::string out = fmt::format("\n  {} requests at once, one shared system prompt, {}\n\n", questions.size(), model);
  out += row("", "sharing on", "sharing off", "");
  out += row("tokens in the prompts", grouped(on.prompt_tokens), grouped(off.prompt_tokens), "");
  out += row("tokens computed", grouped(on.computed_tokens), grouped(off.computed_tokens),
             ratio(count(off.computed_tokens), count(on.computed_tokens), "fewer"));
  out += row("tokens reused", grouped(on.cached_tokens), grouped(off.cached_tokens), "");
  out += row("KV memory at peak", mib(on.kv_bytes_peak), mib(off.kv_bytes_peak),
             ratio(count(off.kv_bytes_peak), count(on.kv_bytes_peak), "less"));
  out += row("first token, median", seconds(on.load.ttft_p50_ms()), seconds(off.load.ttft_p50_ms()),
             ratio(off.load.ttft_p50_ms(), on.load.ttft_p50_ms(), "sooner"));
  out += row("first token, slowest", seconds(on.load.ttft_max_ms()), seconds(off.load.ttft_max_ms()),
             ratio(off.load.ttft_max_ms(), on.load.ttft_max_ms(), "sooner"));
  out += row("total time", seconds(on.load.wall_ms), seconds(off.load.wall_ms),
             ratio(off.load.wall_ms, on.load.wall_ms, "faster"));
  out += row("output tokens/s", fmt::format("{:.1f}", on.load.output_tokens_per_s()),
             fmt::format("{:.1f}", off.load.output_tokens_per_s()),
             ratio(on.load.output_tokens_per_s(), off.load.output_tokens_per_s(), "more"));
  out += fmt::format(
      "\n  The answers (with sharing on; {} of {} are the same, letter for letter, with it off: other batches\n"
      "  round 4-bit weights' products in other places, and greedy text goes another way)\n",
      identical_answers(), questions.size());
  for (std::size_t i = 0; i < questions.size(); ++i) {
    out += fmt::format("  {}. {}\n     {}\n", i + 1, questions[i], shortened(on.load.answers[i].text));
  }
  return out;
}

nlohmann::ordered_json DemoReport::json() const {
  return {
      {"requests", questions.size()},
      {"identical_answers", identical_answers()},
      {"on", run_json(on)},
      {"off", run_json(off)},
  };
}

}  // namespace coppice::cli
