// JsonPattern: regexes between the quotes of a JSON string.
#include "grammar/pattern.h"

#include <gtest/gtest.h>

#include <string>

#include "grammar/source.h"

namespace coppice::grammar {
namespace {

TEST(JsonPattern, MatchesWholeStrings) {
  const JsonPattern pattern("[a-z]{2,}");
  EXPECT_TRUE(pattern.matches("abc"));
  EXPECT_FALSE(pattern.matches("a"));
  EXPECT_FALSE(pattern.matches("abcD"));
}

TEST(JsonPattern, LeavesQuotesAndEscapesOut) {
  const JsonPattern anything(".*");
  EXPECT_TRUE(anything.matches("caf\xc3\xa9"));
  EXPECT_FALSE(anything.matches("a\"b"));
  EXPECT_FALSE(anything.matches("a\\b"));
  EXPECT_FALSE(anything.matches("a\nb"));
}

TEST(JsonPattern, RefusesWhatItCannotHold) {
  for (const char* regex :
       {"a(?=b)", "a(?!b)", "(?<=a)b", "(a)\\1", "\\bword\\b", "a^b", "\"", "\\\\", "\n", "caf\xc3\xa9", "(", "\\p{L}"})
    EXPECT_THROW(JsonPattern{regex}, GrammarError) << regex;
}

TEST(JsonPattern, KnowsWhetherTwoOverlap) {
  EXPECT_TRUE(JsonPattern("x-.*").overlaps(JsonPattern(".*-y")));
  EXPECT_FALSE(JsonPattern("x-.*").overlaps(JsonPattern("[a-w].*")));
}

}  // namespace
}  // namespace coppice::grammar
