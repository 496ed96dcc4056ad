#include "grammar/source.h"

#include <fmt/format.h>

namespace coppice::grammar {

namespace {

/// A GBNF string. The text is UTF-8, which stays as it is but for what would end or escape it.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

}  // namespace

Source choice_of(std::span<const std::string> texts) {
  std::string rule = "root ::=";
  const char* separator = " ";
  for (const std::string& text : texts) {
    rule += separator + quoted(text);
    separator = " | ";
  }
  return {.kind = Kind::kGbnf, .text = std::move(rule)};
}

}  // namespace coppice::grammar
