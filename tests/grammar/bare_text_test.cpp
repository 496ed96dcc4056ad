// Strings without quotes, which a schema's pattern or format holds up to a text that ends them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace coppice::grammar {
namespace {

bool is_text(const std::string& keyword, const std::string& value, const std::string& end, const std::string& text) {
  static const Compiler compiler([] {
    Words words{.ends = {256}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    words.pieces.emplace_back("<end>");
    return words;
  }());
  const std::string schema = R"({"type":"string",")" + keyword + R"(":")" + value + "\"}";
  Matcher m(compiler.compile({.text = "root ::= \"<\" a \">\"\na ::= [0-9]*",
                              .bare = {{"a", {schema, keyword == "pattern" ? value : "", {end}}}}}));
  return m.accept_text("<" + text + ">") && m.whole();
}

TEST(BareText, IsHeldToAPattern) {
  EXPECT_TRUE(is_text("pattern", "[a-z]{2}-[0-9]+", "</a>", "ab-12"));
  EXPECT_FALSE(is_text("pattern", "[a-z]{2}-[0-9]+", "</a>", "ab-"));
  EXPECT_FALSE(is_text("pattern", "[a-z]{2}-[0-9]+", "</a>", "\"ab-12\""));
  EXPECT_TRUE(is_text("pattern", "a|bc*", "</a>", "bcc"));
  EXPECT_FALSE(is_text("pattern", "a|bc*", "</a>", "ac"));
  EXPECT_TRUE(is_text("pattern", ".{3}", "\n</a>", "<é>")) << "no newline is in it, so no end is";
}

TEST(BareText, IsHeldToAFormat) {
  EXPECT_TRUE(is_text("format", "date", "</a>", "2026-11-27"));
  EXPECT_FALSE(is_text("format", "date", "</a>", "2026-13-27"));
  for (const char* format : {"time", "date-time", "duration", "ipv6", "hostname", "uuid", "uri", "uri-reference"})
    EXPECT_FALSE(is_text("format", format, "</a>", "<a>")) << format;
}

/// Then the grammar's own text holds: digits.
TEST(BareText, IsNotHeldWhereItsEndMightStandInIt) {
  for (const char* end : {"</a>", "\uff5ca\uff5c", "bb", "bab"}) {
    EXPECT_TRUE(is_text("pattern", ".*b", end, "12")) << end;
    EXPECT_FALSE(is_text("pattern", ".*b", end, "ab")) << end;
  }
  // "bab" ends earlier behind "ba": "ba" + "bab".
  EXPECT_FALSE(is_text("pattern", "(ba)?", "bab", "ba"));
  EXPECT_TRUE(is_text("pattern", "(ba)?", "baab", "ba"));
}

}  // namespace
}  // namespace coppice::grammar
