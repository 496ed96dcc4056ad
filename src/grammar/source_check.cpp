#include "grammar/source_check.h"

#include <fmt/format.h>

#include "grammar/source.h"

namespace coppice::grammar {

void check_size(std::string_view text, std::size_t most_bytes) {
  if (text.size() > most_bytes)
    throw GrammarError(fmt::format("it has {} bytes, and {} is the most", text.size(), most_bytes));
  if (text.find('\0') != std::string_view::npos) throw GrammarError("it has a zero byte");
  int depth = 0;
  for (const char c : text) {
    if (c == '(' || c == '[' || c == '{') ++depth;
    if (c == ')' || c == ']' || c == '}') --depth;
    if (depth > kMaxSourceDepth) throw GrammarError(fmt::format("it nests deeper than {} brackets", kMaxSourceDepth));
  }
}

std::string reason_of(const std::exception& e) {
  std::string_view message = e.what();
  if (const auto begin = message.find(") is false: ");
      message.starts_with("Check failed") && begin + 12 < message.size())
    message.remove_prefix(begin + 12);
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.remove_suffix(1);
  return std::string(message.substr(0, 500));
}

}  // namespace coppice::grammar
