#include "server/jobs/thought_count.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace coppice::server {
namespace {

TEST(ThoughtCount, EndsWithTheReasoning) {
  ThoughtCount count;
  for (const char* token : {"<think>", "\n", "It", " is", " 4", "\n", "</think>", "\n\n", "4", ""})
    count.push(token, 1);
  count.read("It is 4", false);  // the reader leaves out white space at both ends
  count.read("", true);
  EXPECT_EQ(count.tokens(), 5) << "the mark, a line break, three words";
}

TEST(ThoughtCount, ReasoningMayBeginAtOnceAndFillAll) {
  ThoughtCount count;
  for (const char* token : {"It", " is", " ", ""}) count.push(token, 1);
  count.read("It is", false);
  EXPECT_EQ(count.tokens(), 2);
  ThoughtCount cut;
  cut.push("It is", 2);
  cut.read("It is", false);
  EXPECT_EQ(cut.tokens(), 2);
}

TEST(ThoughtCount, OfAPieceOfSeveralTokensItTakesAPart) {
  ThoughtCount count;
  count.push("aaaabbbb", 4);
  count.read("aaaa", true);
  EXPECT_EQ(count.tokens(), 2);
}

TEST(ThoughtCount, AnAnswerWithoutReasoningHasNone) {
  ThoughtCount count;
  count.push("hello", 1);
  count.read("", true);
  EXPECT_EQ(count.tokens(), 0);
  EXPECT_EQ(ThoughtCount().tokens(), 0);
}

TEST(ThoughtCount, LaterTextChangesNothing) {
  ThoughtCount count;
  count.push("hm", 1);
  count.read("hm", false);
  count.push(" yes", 1);
  count.read("", true);
  for (int i = 0; i < 1000; ++i) count.push("hm", 1);
  EXPECT_EQ(count.tokens(), 1);
}

}  // namespace
}  // namespace coppice::server
