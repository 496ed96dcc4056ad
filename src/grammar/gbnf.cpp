#include "grammar/gbnf.h"

#include <algorithm>
#include <cstddef>

namespace coppice::grammar {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/// The end of the string, character class or comment that begins at `at`; `at` where none does.
std::size_t end_of_quoted(std::string_view text, std::size_t at) {
  const char open = text[at];
  if (open == '#') return std::min(text.find('\n', at), text.size());
  if (open != '"' && open != '[') return at;
  const char close = open == '[' ? ']' : '"';
  std::size_t i = at + 1;
  for (; i < text.size() && text[i] != close; ++i)
    if (text[i] == '\\') ++i;
  return std::min(i + 1, text.size());
}

}  // namespace

std::string with_empty_strings(std::string_view gbnf) {
  std::string out;
  bool bare = false;  // an alternative has begun, and nothing of it has come
  for (std::size_t i = 0; i < gbnf.size();) {
    if (const std::size_t end = end_of_quoted(gbnf, i); end > i) {
      bare = bare && gbnf[i] == '#';
      out += gbnf.substr(i, end - i);
      i = end;
      continue;
    }
    const char c = gbnf[i];
    if (bare && (c == '|' || c == ')')) out += "\"\" ";
    if (gbnf.substr(i).starts_with("::=")) {
      out += "::=";
      i += 3;
      bare = true;
      continue;
    }
    if (!is_space(c)) bare = c == '|' || c == '(';
    out += c;
    ++i;
  }
  return out;
}

}  // namespace coppice::grammar
