// Letters beyond ASCII, in every notation: what is allowed is what was written.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"

namespace coppice::grammar {
namespace {

bool matches(const Source& source, const std::string& text) {
  static const Compiler compiler([] {
    Words words{.ends = {256}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    words.pieces.emplace_back("<end>");
    return words;
  }());
  Matcher m(compiler.compile(source));
  return m.accept_text(text) && m.whole();
}

/// Each is a letter of U+0080 to U+00FF before hexadecimal digits.
const std::vector<std::string> kTexts = {"über", "données", "°C", "é9", "ÿffff", "ñ0", "Äa\u20acb", "naïve", "😀face"};

TEST(Unicode, ChoicesAreWrittenAsTheyAre) {
  const Source source = choice_of(kTexts);
  for (const std::string& text : kTexts) EXPECT_TRUE(matches(source, text)) << text;
}

TEST(Unicode, NamesAndValuesOfSchemasAreWrittenAsTheyAre) {
  for (const std::string& text : kTexts) {
    const std::string quoted = '"' + text + '"';
    EXPECT_TRUE(
        matches({.kind = Kind::kJsonSchema,
                 .text = R"({"type":"object","properties":{)" + quoted + R"(:{"type":"boolean"}},"required":[)" +
                         quoted + R"(],"additionalProperties":false})"},
                "{" + quoted + ": true}"))
        << text;
    const std::string value = R"({"enum":[)" + quoted + "]}";
    EXPECT_TRUE(matches({.kind = Kind::kJsonSchema, .text = value}, quoted)) << text;
    EXPECT_TRUE(matches({.text = "root ::= \"<\" a \">\"\na ::= [{]", .schemas = {{"a", value}}}, "<" + quoted + ">"));
    EXPECT_TRUE(matches({.text = "root ::= \"" + text + "\" x{2,3}\nx ::= \"é\" \"a\""}, text + "éaéa")) << text;
    EXPECT_TRUE(matches({.kind = Kind::kRegex, .text = text + "{2}"}, text + text.substr(text.size() - 1))) << text;
  }
}

TEST(Unicode, EscapesHaveTwoDigits) {
  EXPECT_TRUE(matches({.text = R"(root ::= "\xfcber")"}, "über"));
  EXPECT_TRUE(matches({.text = R"(root ::= [\xfcb]+)"}, "bü"));
  EXPECT_TRUE(matches({.kind = Kind::kRegex, .text = R"(\xfcber)"}, "über"));
  EXPECT_TRUE(matches({.kind = Kind::kRegex, .text = R"([\u00fcb]+)"}, "bü"));
  EXPECT_TRUE(matches({.kind = Kind::kRegex, .text = R"([\u{e9}a])"}, "a"));
}

}  // namespace
}  // namespace coppice::grammar
