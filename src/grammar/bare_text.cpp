// XGrammar's private headers: its public ones don't show a rule's expressions to who builds a grammar.
#include "grammar/bare_text.h"

#include <fmt/format.h>
#include <grammar_impl.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "grammar/pattern.h"

namespace coppice::grammar {

namespace {

/// No character of a string with a pattern.
bool is_escaped(unsigned char c) {
  return c < 0x20 || c == '"' || c == '\\';
}

/// A beginning of `end`: a string without it doesn't move the end forward, either, that stands behind it ("\n</a>"
/// before "\n</a>\n").
std::string_view head_of(std::string_view end) {
  for (std::size_t period = 1; period < end.size(); ++period)
    if (end.substr(period) == end.substr(0, end.size() - period)) return end.substr(0, period);
  return end;
}

/// All strings that hold the text.
std::string holding(std::string_view text) {
  std::string regex = ".*";
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t length = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    unsigned code = length == 1 ? first : first & (0x7fU >> length);
    for (std::size_t k = 1; k < length && i + k < text.size(); ++k)
      code = code << 6U | (static_cast<unsigned char>(text[i + k]) & 0x3fU);
    regex += code > 0xffff ? "." : fmt::format("\\u{:04x}", code);
    i += length;
  }
  return regex + ".*";
}

}  // namespace

bool may_hold_end(const BareText& bare) {
  if (bare.pattern.empty()) return false;  // formats have few signs
  try {
    const JsonPattern pattern(bare.pattern);
    return std::ranges::any_of(bare.ends, [&](const std::string& end) {
      const std::string_view head = head_of(end);
      return std::ranges::none_of(head, is_escaped) && pattern.overlaps(JsonPattern(holding(head)));
    });
  } catch (const GrammarError&) {
    return true;
  }
}

std::int32_t between_quotes(xgrammar::GrammarBuilder& builder, std::int32_t rule) {
  const auto only = [&](std::int32_t expr, std::size_t size, std::size_t at) {
    const auto its = builder.GetGrammarExpr(expr);
    if (its.data_len != static_cast<std::int32_t>(size)) throw GrammarError("a bare text must be of a string");
    return its[static_cast<int>(at)];
  };
  const std::int32_t row = only(builder.GetRule(rule).body_expr_id, 1, 0);
  return only(row, 3, 1);
}

}  // namespace coppice::grammar
