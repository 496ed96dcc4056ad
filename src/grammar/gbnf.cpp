#include "grammar/gbnf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>

#include "grammar/source_check.h"

namespace coppice::grammar {

namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

/// What XGrammar takes for calls of its own, wherever they stand.
constexpr std::array<std::string_view, 6> kMacros = {"TagDispatch",      "Token", "ExcludeToken",
                                                     "TokenTagDispatch", "Regex", "Substring"};

}  // namespace

void refuse_extensions(std::string_view gbnf) {
  for (std::size_t i = 0; i < gbnf.size();) {
    if (const std::size_t end = end_of_quoted(gbnf, i, Kind::kGbnf); end > i) {
      const std::size_t next = std::min(gbnf.find_first_not_of(" \t", end), gbnf.size());
      if (gbnf[i] == '[' && gbnf.substr(next).starts_with("::="))
        throw GrammarError("attributes of rules, as in 'a[...] ::=', are not supported");
      i = end;
    } else if (is_name(gbnf[i])) {
      const auto* const after = std::find_if_not(gbnf.begin() + i, gbnf.end(), is_name);
      const std::string_view name(gbnf.begin() + i, after);
      if (std::ranges::find(kMacros, name) != kMacros.end())
        throw GrammarError(fmt::format("'{}' can't be the name of a rule, and calls are not supported", name));
      i += name.size();
    } else if (gbnf.substr(i).starts_with("(=")) {
      throw GrammarError("a look ahead, '(=', is not supported");
    } else {
      ++i;
    }
  }
}

std::string with_empty_strings(std::string_view gbnf) {
  std::string out;
  bool bare = false;  // an alternative has begun, and nothing of it has come
  for (std::size_t i = 0; i < gbnf.size();) {
    if (const std::size_t end = end_of_quoted(gbnf, i, Kind::kGbnf); end > i) {
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
