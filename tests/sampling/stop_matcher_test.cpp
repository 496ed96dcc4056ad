#include "sampling/stop_matcher.h"

#include <gmock/gmock.h>

#include <optional>

#include "text/fixtures.h"
#include "text/utf8_stream.h"

namespace coppice::sampling {
namespace {

using Strings = std::vector<std::string>;

StopMatcher matcher_of(const Strings& stops) {
  return StopMatcher(std::make_shared<const StopStrings>(stops));
}

std::string joined(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher = matcher_of(stops);
  std::string out;
  for (const std::string& piece : pieces) {
    out += matcher.push(piece);
    if (matcher.stopped()) return out + "|";
  }
  return out + matcher.flush();
}

TEST(StopMatcher, CutsBeforeTheStop) {
  EXPECT_EQ(joined({"END"}, {"some textEND and more"}), "some text|");
  EXPECT_EQ(joined({"END"}, {"some textE", "N", "Dmore"}), "some text|");
  EXPECT_EQ(joined({"END"}, {"E", "N", "EN", "D"}), "EN|");
  EXPECT_EQ(joined({"END"}, {"no stop EN"}), "no stop EN");
  EXPECT_EQ(joined({}, {"a", "b"}), "ab");
}

TEST(StopMatcher, HoldsBackOnlyWhatAStopCanStillClaim) {
  StopMatcher matcher = matcher_of({"aab"});
  EXPECT_EQ(matcher.push("xa"), "x");
  EXPECT_EQ(matcher.push("a"), "");
  EXPECT_EQ(matcher.push("a"), "a");
  EXPECT_EQ(matcher.pending(), 2U);
  EXPECT_EQ(matcher.push(""), "");
  EXPECT_EQ(matcher.push("c"), "aac");
  EXPECT_EQ(matcher.flush(), "");
}

TEST(StopMatcher, TheFirstToBeCompleteWins) {
  EXPECT_EQ(joined({"abcd", "c"}, {"abcd"}), "ab|");
  EXPECT_EQ(joined({"bcd", "abcd"}, {"xabcd"}), "x|") << "complete at the same byte: the longest";
  EXPECT_EQ(joined({"\n\n", "\n"}, {"a\n\n"}), "a|");
}

TEST(StopMatcher, StopsInsideTheBytesOfOtherCharacters) {
  // U+4E16 is E4 B8 96; a stop of whole characters never matches half of one.
  EXPECT_EQ(joined({"界"}, {"世界"}), "世|");
  EXPECT_EQ(joined({"🙂"}, {"🙃", "🙂"}), "🙃|");
}

/// The definition, on the whole text at once: the least end, then the least begin.
struct Naive {
  std::string text;
  bool stopped = false;
};
Naive naive(const Strings& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<std::size_t> begin;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        begin = std::min(begin.value_or(end), end - stop.size());
      }
    }
    if (begin) return {text.substr(0, *begin), true};
  }
  return {text, false};
}

std::string random_text(std::mt19937_64& random, const Strings& letters, std::size_t length) {
  std::string text;
  for (std::size_t i = 0; i < length; ++i) text += letters[test::pick_below(random, letters.size())];
  return text;
}

// Few letters, so that stops begin everywhere, overlap themselves and each other, and are met often.
TEST(StopMatcher, EqualsTheDefinitionForEverySplit) {
  std::mt19937_64 random = test::seeded_random();
  const std::vector<Strings> alphabets = {{"a", "b"}, {"a", "b", "c"}, {"é", "è", "世", "🙂", "🙃"}};
  int n_stopped = 0, n_whole = 0;
  for (int round = 0; round < 50000; ++round) {
    const Strings& letters = alphabets[test::pick_below(random, alphabets.size())];
    Strings stops;
    for (std::size_t n = 1 + test::pick_below(random, 4); n > 0; --n) {
      stops.push_back(random_text(random, letters, 1 + test::pick_below(random, 10)));
    }
    // Beginnings of the stops one after the other: near misses that overlap the next match.
    std::string text;
    for (std::size_t n = test::pick_below(random, 12); n > 0; --n) {
      const std::string& stop = stops[test::pick_below(random, stops.size())];
      std::size_t length = test::pick_below(random, stop.size());
      while ((static_cast<unsigned char>(stop[length]) & 0xC0) == 0x80) --length;
      text += stop.substr(0, length) + random_text(random, letters, test::pick_below(random, 3));
    }
    const Naive expected = naive(stops, text);

    StopMatcher matcher = matcher_of(stops);
    std::string out;
    std::size_t i = 0;
    while (i < text.size() && !matcher.stopped()) {
      std::size_t n = std::min(test::pick_below(random, 9), text.size() - i);
      while (i + n < text.size() && (static_cast<unsigned char>(text[i + n]) & 0xC0) == 0x80) ++n;
      const std::string piece = matcher.push(std::string_view(text).substr(i, n));
      ASSERT_TRUE(text::is_utf8(piece));
      out += piece;
      i += n;
      // What is out can never be part of a stop that completes later; what is held back might be.
      ASSERT_EQ(expected.text.compare(0, out.size(), out), 0) << "round " << round;
      if (!matcher.stopped()) {
        const std::string held = text.substr(out.size(), i - out.size());
        ASSERT_EQ(held.size(), matcher.pending());
        ASSERT_TRUE(held.empty() || std::ranges::any_of(stops,
                                                        [&](const std::string& stop) {
                                                          return stop.size() > held.size() && stop.starts_with(held);
                                                        }))
            << "held back without need";
      }
    }
    ASSERT_EQ(matcher.stopped(), expected.stopped) << "round " << round;
    if (!matcher.stopped()) out += matcher.flush();
    ASSERT_EQ(out, expected.text) << "round " << round;
    ++(expected.stopped ? n_stopped : n_whole);
  }
  EXPECT_GT(n_stopped, 1000);
  EXPECT_GT(n_whole, 1000);
}

}  // namespace
}  // namespace coppice::sampling
