#include "grammar/schema/search_pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "grammar/regex_dialect.h"
#include "grammar/sound_regex.h"
#include "grammar/source.h"

namespace coppice::grammar {

namespace {

struct Alternative {
  std::string body;
  bool from_start = false, to_end = false;
};

/// A character of UTF-8 beyond ASCII, as an escape; moves on. REQUIRES: valid UTF-8.
std::string escaped_character(std::string_view regex, std::size_t& at) {
  const auto first = static_cast<unsigned char>(regex[at]);
  const int n = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  std::uint32_t code = first & (0xFFU >> (n + 1));
  for (int i = 1; i < n && at + 1 < regex.size(); ++i)
    code = code << 6U | (static_cast<unsigned char>(regex[++at]) & 0x3FU);
  ++at;
  return fmt::format("\\u{{{:x}}}", code);
}

/// The end of the class that begins at `at`.
std::size_t class_end(std::string_view regex, std::size_t at) {
  std::size_t end = at + 1;
  if (end < regex.size() && regex[end] == '^') ++end;
  for (; end < regex.size() && regex[end] != ']'; ++end) {
    if (regex[end] == '\\') ++end;
  }
  if (end >= regex.size()) throw GrammarError("a '[' is never closed");
  return end + 1;
}

/// Is all of it one group without a quantifier? Then what is in it.
std::string_view without_group(std::string_view regex) {
  if (!regex.starts_with('(') || !regex.ends_with(')')) return regex;
  int depth = 0;
  for (std::size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\\') {
      ++i;
    } else if (regex[i] == '[') {
      i = class_end(regex, i) - 1;
    } else if (regex[i] == '(') {
      ++depth;
    } else if (regex[i] == ')' && --depth == 0 && i + 1 < regex.size()) {
      return regex;
    }
  }
  if (depth != 0 || regex.ends_with("\\)")) return regex;
  std::string_view inner = regex.substr(1, regex.size() - 2);
  if (inner.starts_with("?:")) inner.remove_prefix(2);
  return inner.starts_with('?') ? regex : inner;
}

std::vector<Alternative> alternatives(std::string_view regex) {
  std::vector<Alternative> all(1);
  int depth = 0;
  for (std::size_t i = 0; i < regex.size();) {
    Alternative& now = all.back();
    const char c = regex[i];
    if (now.to_end && !(c == '|' && depth == 0) && c != '$')
      throw GrammarError("a '$' stands elsewhere than at the end");
    if (static_cast<unsigned char>(c) >= 0x80) {
      now.body += escaped_character(regex, i);
    } else if (c == '\\' && i + 1 < regex.size() && static_cast<unsigned char>(regex[i + 1]) >= 0x80) {
      ++i;
    } else if (c == '\\') {
      const std::size_t end = regex.substr(i).starts_with("\\u{") ? regex.find('}', i) + 1 : i + 2;
      now.body += regex.substr(i, end - i);
      i = end;
    } else if (c == '[') {
      const std::size_t end = class_end(regex, i);
      while (i < end) {
        if (static_cast<unsigned char>(regex[i]) >= 0x80) {
          now.body += escaped_character(regex, i);
        } else {
          now.body += regex[i++];
        }
      }
    } else if (c == '^') {
      if (depth > 0 || !now.body.empty()) throw GrammarError("a '^' stands elsewhere than at the beginning");
      now.from_start = true;
      ++i;
    } else if (c == '$') {
      if (depth > 0) throw GrammarError("a '$' stands elsewhere than at the end");
      now.to_end = true;
      ++i;
    } else if (c == '|' && depth == 0) {
      all.emplace_back();
      ++i;
    } else if (c == ']' || (c == '{' && !opens_quantifier(regex.substr(i)))) {  // a sign, to Python and to browsers
      now.body += {'\\', c};
      ++i;
    } else {
      depth += c == '(' ? 1 : c == ')' ? -1 : 0;
      now.body += c;
      ++i;
    }
  }
  return all;
}

/// Is it one character or class? Then where it ends; else 0.
std::size_t one_character(std::string_view regex) {
  if (regex.empty()) return 0;
  if (regex[0] == '[') return class_end(regex, 0);
  if (regex[0] == '\\') {
    constexpr std::string_view kKnown = "dDwWsS.-/";
    return regex.size() > 1 && kKnown.find(regex[1]) != std::string_view::npos ? 2 : 0;
  }
  constexpr std::string_view kSyntax = "()*+?{}|^$]";
  return kSyntax.find(regex[0]) == std::string_view::npos ? 1 : 0;
}

}  // namespace

std::string whole_pattern(std::string_view client_regex) {
  const std::string plain = plain_regex(client_regex, true);
  std::string_view regex = plain;
  for (std::string_view inner = without_group(regex); inner.size() < regex.size(); inner = without_group(regex))
    regex = inner;
  const std::vector<Alternative> all = alternatives(regex);
  std::string whole;
  for (const Alternative& one : all) {
    if (!whole.empty() || &one != &all.front()) whole += '|';
    whole += (one.from_start ? "" : ".*") + one.body + (one.to_end ? "" : ".*");
  }
  return sound_regex(all.size() == 1 ? whole : "(" + whole + ")");
}

std::string with_lengths(std::string_view whole, long least, long most) {
  while (without_group(whole).size() < whole.size()) whole = without_group(whole);
  const std::size_t end = one_character(whole);
  if (end == 0) return {};
  const std::string_view times = whole.substr(end);
  long own_least = 0;
  if (times == "+") {
    own_least = 1;
  } else if (times != "*") {
    return {};
  }
  least = std::max(least, own_least);
  if (most >= 0 && most < least) return {};
  const std::string upper = most < 0 ? "" : fmt::format("{}", most);
  return fmt::format("{}{{{},{}}}", whole.substr(0, end), least, upper);
}

}  // namespace coppice::grammar
