// sound_regex(): patterns hold the same texts as their author's regex, by sets of texts put together without them.
#include "grammar/sound_regex.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/pattern.h"

namespace coppice::grammar {
namespace {

TEST(SoundRegex, RewritesTwoQuantifiers) {
  EXPECT_EQ(sound_regex("a?"), "a{0,1}");
  EXPECT_EQ(sound_regex("(a|b){2,}c{3,}"), "((a|b)+){2}c{3,}");
  EXPECT_EQ(sound_regex("((?:a|b){2,}){3,}"), "((((?:a|b)+){2})+){3}");
  EXPECT_EQ(sound_regex("a*?b+?c??"), "a*b+c{0,1}");
  EXPECT_EQ(sound_regex("(?:a)?"), "(?:a){0,1}");
  EXPECT_EQ(sound_regex("(a|b){0,}c{1,}"), "(a|b)*c+");
}

TEST(SoundRegex, LeavesTheRestAlone) {
  for (const char* regex :
       {"", "a", "[?{2,}]+", "\\?\\{2,}", "a{2,3}", "(a){1,2}", "(a", "a)", "a{b}", "a{", "?", "|?"})
    EXPECT_EQ(sound_regex(regex), regex);
}

// What XGrammar takes for whole without it: each of these was seen.
TEST(SoundRegex, HoldsWhatTheAutomataLose) {
  EXPECT_FALSE(JsonPattern(sound_regex("(T([0-9]+H)?([0-9]+M)?)?")).matches("T8"));
  EXPECT_FALSE(JsonPattern(sound_regex("(a*b)?")).matches("a"));
  EXPECT_FALSE(JsonPattern(sound_regex("(ab*)?")).matches("b"));
  EXPECT_FALSE(JsonPattern(sound_regex("(ab*|c){2,}")).matches("ccb"));
  EXPECT_FALSE(JsonPattern(sound_regex("a((cb*){2,}|(dd)*){0,}")).matches("ac"));
}

/// The texts of at most four letters that a regex means.
using Language = std::set<std::string>;
constexpr std::size_t kLongest = 4;

Language then(const Language& first, const Language& second) {
  Language all;
  for (const std::string& head : first) {
    for (const std::string& tail : second)
      if (head.size() + tail.size() <= kLongest) all.insert(head + tail);
  }
  return all;
}

/// `most`: so often at most; -1: any number. Beyond the longest text more of them add nothing.
Language times(const Language& once, int least, int most) {
  Language now = {""}, all;
  for (int n = 0; n <= (most < 0 ? least + static_cast<int>(kLongest) : most); ++n) {
    if (n >= least) all.insert(now.begin(), now.end());
    now = then(now, once);
  }
  return all;
}

struct Regex {
  std::string text;
  Language language;
};

/// A random regex over a, b and c. Its language is put together of its parts' languages, without an automaton or a
/// matcher.
class Writer {
 public:
  explicit Writer(std::mt19937& random) : random_(random) {}
  Regex regex(int depth) {
    Regex out = sequence(depth);
    for (int n = below(3); n > 1; --n) {
      const Regex other = sequence(depth);
      out.text += "|" + other.text;
      out.language.insert(other.language.begin(), other.language.end());
    }
    return out;
  }

 private:
  struct Times {
    const char* text;
    int least, most;
  };

  int below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  const auto& one_of(const auto& list) { return list[static_cast<std::size_t>(below(static_cast<int>(list.size())))]; }
  Regex sequence(int depth) {
    Regex out{.text = "", .language = {""}};
    for (int n = 1 + below(3); n > 0; --n) {
      const Regex next = item(depth);
      out.text += next.text;
      out.language = then(out.language, next.language);
    }
    return out;
  }
  Regex item(int depth) {
    static const std::vector<Regex> kAtoms = {{"a", {"a"}},         {"b", {"b"}},         {"c", {"c"}},
                                              {"[ab]", {"a", "b"}}, {"[^a]", {"b", "c"}}, {".", {"a", "b", "c"}}};
    static const std::vector<Times> kTimes = {{"?", 0, 1},     {"*", 0, -1},    {"+", 1, -1},
                                              {"{0,1}", 0, 1}, {"{2}", 2, 2},   {"{1,2}", 1, 2},
                                              {"{0,}", 0, -1}, {"{1,}", 1, -1}, {"{2,}", 2, -1}};
    Regex out;
    if (depth > 0 && below(2) == 0) {
      out = regex(depth - 1);
      out.text = "(" + out.text + ")";
    } else {
      out = one_of(kAtoms);
    }
    if (below(2) == 0) {
      const Times& n = one_of(kTimes);
      out.text += n.text;
      out.language = times(out.language, n.least, n.most);
    }
    return out;
  }
  std::mt19937& random_;
};

const Compiler& bytes_compiler() {
  static const Compiler compiler([] {
    Words words{.ends = {0}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    return words;
  }());
  return compiler;
}

/// Does the text follow the grammar from its beginning to its end?
bool follows(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  return (text.empty() || matcher.accept_text(text)) && matcher.whole();
}

// XGrammar's merging of states gave "c" the successors of "a" (mended in cmake/xgrammar).
TEST(SoundRegex, EndsOfAlternativesStayApart) {
  EXPECT_FALSE(JsonPattern("c|a|ab{0,1}").matches("cb"));
  EXPECT_FALSE(follows(bytes_compiler().compile({.kind = Kind::kRegex, .text = "c|a|ab{0,1}"}), "cb"));
  const auto gbnf =
      bytes_compiler().compile({.kind = Kind::kGbnf, .text = R"(root ::= "c" | "a" | "a" [b] | "a" "b" "a")"});
  EXPECT_FALSE(follows(gbnf, "cb"));
  EXPECT_FALSE(follows(gbnf, "cba"));
}

TEST(SoundRegex, RandomRegexesMeanTheSame) {
  const char* given = std::getenv("COPPICE_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::cout << "COPPICE_SEED=" << seed << "\n";
  std::mt19937 random(seed);
  const Language all = times({"a", "b", "c"}, 0, kLongest);
  for (int i = 0; i < 150; ++i) {
    const Regex regex = Writer(random).regex(2);
    const std::string sound = sound_regex(regex.text);
    SCOPED_TRACE(regex.text + " as " + sound);
    const JsonPattern pattern(sound);
    const auto of_schema = bytes_compiler().compile(
        {.kind = Kind::kJsonSchema, .text = fmt::format(R"({{"type":"string","pattern":"{}"}})", sound)});
    const auto of_regex = bytes_compiler().compile({.kind = Kind::kRegex, .text = regex.text});
    for (const std::string& text : all) {
      const bool wanted = regex.language.contains(text);
      ASSERT_EQ(pattern.matches(text), wanted) << text;
      ASSERT_EQ(follows(of_schema, '"' + text + '"'), wanted) << "in a schema: " << text;
      ASSERT_EQ(follows(of_regex, text), wanted) << "as a regex, not written anew: " << text;
    }
  }
}

}  // namespace
}  // namespace coppice::grammar
