#include "grammar/source_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace coppice::grammar {

std::size_t end_of_quoted(std::string_view text, std::size_t at, Kind kind) {
  const char open = text[at];
  if (kind == Kind::kGbnf && open == '#') return std::min(text.find('\n', at), text.size());
  if (kind == Kind::kRegex && open == '\\') return std::min(at + 2, text.size());
  const bool is_string = open == '"' && kind != Kind::kRegex;
  const bool is_class = open == '[' && (kind == Kind::kGbnf || kind == Kind::kRegex);
  if (!is_string && !is_class) return at;
  std::size_t i = at + 1;
  for (; i < text.size() && text[i] != (is_class ? ']' : '"'); ++i)
    if (text[i] == '\\') ++i;
  return std::min(i + 1, text.size());
}

void check_size(std::string_view text, std::size_t most_bytes, Kind kind) {
  if (text.size() > most_bytes)
    throw GrammarError(fmt::format("it has {} bytes, and {} is the most", text.size(), most_bytes));
  if (text.find('\0') != std::string_view::npos) throw GrammarError("it has a zero byte");
  int depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    if (const std::size_t end = end_of_quoted(text, i, kind); end > i) {
      i = end;
      continue;
    }
    const char c = text[i++];
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') depth = std::max(depth - 1, 0);
    if (depth > kMaxSourceDepth) throw GrammarError(fmt::format("it nests deeper than {} brackets", kMaxSourceDepth));
  }
}

std::string reason_of(const std::exception& e) {
  std::string_view message = e.what();
  if (const auto begin = message.find(") is false: ");
      message.starts_with("Check failed") && begin + 12 < message.size())
    message.remove_prefix(begin + 12);
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.remove_suffix(1);
  // XGrammar has none for a number that is too large in a structural tag.
  if (message.empty()) message = "it can't be read";
  return std::string(message.substr(0, 500));
}

}  // namespace coppice::grammar
