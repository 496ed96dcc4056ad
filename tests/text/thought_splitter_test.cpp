#include "text/thought_splitter.h"

#include <gtest/gtest.h>

#include <string>

namespace coppice::text {
namespace {

struct Parts {
  std::string reasoning, content;
  bool operator==(const Parts&) const = default;
};

/// The text in pieces of `size` bytes.
Parts split(const ThoughtTags& tags, std::string_view text, std::size_t size) {
  ThoughtSplitter splitter(tags);
  Parts all;
  const auto add = [&all](const AnswerParts& parts) {
    all.reasoning += parts.reasoning;
    all.content += parts.content;
  };
  for (std::size_t at = 0; at < text.size(); at += size) add(splitter.push(text.substr(at, size)));
  add(splitter.finish());
  return all;
}

const ThoughtTags kTags = {.begin = "<think>", .end = "</think>"};
const ThoughtTags kOpen = {.begin = "<think>", .end = "</think>", .open = true};

struct Case {
  const char* name;
  ThoughtTags tags;
  const char* text;
  Parts parts;
};

TEST(ThoughtSplitter, PartsReasoningFromTheAnswerHoweverItComes) {
  const Case cases[] = {
      {"both", kTags, "<think>\nWell, 1 < 2.\n\n</think>\n\nYes: </think>", {"Well, 1 < 2.", "Yes: </think>"}},
      {"blanks first", kTags, "\n<think>a</think>b", {"a", "b"}},
      {"none", kTags, "Just <think>text</think>\n", {"", "Just <think>text</think>\n"}},
      {"empty", kTags, "<think>\n\n</think>\n\nHi", {"", "Hi"}},
      {"no end", kTags, "<think>a b </th", {"a b </th", ""}},
      {"half a tag", kTags, "<thi", {"", "<thi"}},
      {"blanks inside", kTags, "<think>a \n b<</think>c \n d\n", {"a \n b<", "c \n d\n"}},
      {"begun", kOpen, "Well.\n</think>\nYes", {"Well.", "Yes"}},
      {"nothing", kOpen, "", {"", ""}},
  };
  for (const Case& c : cases) {
    for (const std::size_t size : {1, 2, 3, 7, 1000})
      EXPECT_EQ(split(c.tags, c.text, size), c.parts) << c.name << ", in pieces of " << size;
  }
}

TEST(ThoughtSplitter, HoldsBackOnlyWhatMayBelongToATag) {
  ThoughtSplitter splitter(kTags);
  EXPECT_EQ(splitter.push("<think>a b").reasoning, "a b");
  EXPECT_EQ(splitter.push(" c</th").reasoning, " c");
  EXPECT_EQ(splitter.push("e").reasoning, "</the");
  EXPECT_EQ(splitter.push("</think>").reasoning, "");
  EXPECT_EQ(splitter.push("\n x ").content, "x ");
}

}  // namespace
}  // namespace coppice::text
