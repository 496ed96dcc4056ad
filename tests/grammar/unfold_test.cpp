// Repeated characters, and what masks say of words that go beyond one.

#include <compiled_grammar_impl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "grammar/impl.h"
#include "grammar/matcher.h"

namespace coppice::grammar {
namespace {

constexpr kv::Token kEnd = 0;
constexpr std::size_t kTooLong = 256;

/// Bytes, runs of a letter, words that begin or end strings, and escapes.
const Words& words() {
  static const Words words = [] {
    Words all;
    all.ends = {kEnd};
    for (int byte = 0; byte < 256; ++byte) all.pieces.emplace_back(1, static_cast<char>(byte));
    all.pieces.emplace_back(17, 'a');
    for (std::size_t n = 2; n <= 16; ++n) {
      all.pieces.emplace_back(n, 'a');
      all.pieces.push_back(std::string(n - 1, 'b') + "\"");
    }
    for (const char* text :
         {"\"a", "\"aaaaaaaa", "\"\"", "\\n", "\\na", "a\\", "a\\n", "\\u", "\\u00", "\\u00e9", "\\u00e9aa\"", "\\\"",
          "\",", "\"]", "aa\",\"a", "\u00e9", "\u00e9\u20ac", "a\u20ac\"", "\xe2\x82"})
      all.pieces.emplace_back(text);
    return all;
  }();
  return words;
}

const Compiler& compiler() {
  static const Compiler compiler(words());
  return compiler;
}

bool allows(std::span<const std::int32_t> mask, std::size_t token) {
  return ((static_cast<unsigned>(mask[token / 32]) >> (token % 32)) & 1U) != 0;
}

bool in_escape(const std::string& text) {
  const std::size_t at = text.rfind('\\');
  return at != text.npos && text.size() - at < (text.compare(at, 2, "\\u") == 0 ? 6 : 2);
}

struct Written {
  std::string text;
  bool ended = false;
};

/// By random tokens that the mask allows; it must say of each token what the parser says of its bytes.
/// (XGrammar 0.2.8 refuses some that are right, where several characters or digits must come: `least`.)
/// first: those before are left out, as control characters are of JSON.
Written write(Matcher matcher, std::mt19937_64& random, int least, std::size_t first = 1) {
  Written written;
  for (int i = 0; i < 400; ++i) {
    const auto now = matcher.mask();
    const std::vector<std::int32_t> mask(now.begin(), now.end());
    const bool exact = least < 2 && !in_escape(written.text);
    std::vector<std::size_t> allowed;
    for (std::size_t token = first; token < words().pieces.size(); ++token) {
      const std::string& piece = words().pieces[token];
      if (token == kTooLong) {
        EXPECT_FALSE(allows(mask, token));
      } else if (token >= 256 || token % 8 == static_cast<std::size_t>(i) % 8 || piece == "\"") {
        const bool fits = matcher.clone().accept_text(piece);
        if (exact || !fits) EXPECT_EQ(allows(mask, token), fits) << written.text << " and " << piece;
      }
      if (allows(mask, token)) allowed.push_back(token);
    }
    EXPECT_EQ(allows(mask, kEnd), matcher.whole());
    if (allowed.empty() || ::testing::Test::HasFailure()) {
      written.ended = matcher.whole();
      return written;
    }
    // Words rather than bytes, which would fill a string with half characters.
    std::size_t token = allowed[random() % allowed.size()];
    for (int j = 0; j < 3 && token < 256; ++j) token = allowed[random() % allowed.size()];
    EXPECT_TRUE(matcher.accept(static_cast<kv::Token>(token)));
    written.text += words().pieces[token];
  }
  return written;
}

/// Code points and escapes between the quotes.
int count_characters(const std::string& text) {
  int n = 0;
  for (std::size_t i = 1; i + 1 < text.size(); ++n) {
    const auto c = static_cast<unsigned char>(text[i]);
    i += c == '\\' ? (text[i + 1] == 'u' ? 6 : 2) : c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
  }
  return n;
}

struct Case {
  int least, most;  ///< most < 0: no limit
};
const Case kCases[] = {{0, 1},   {3, 3},   {0, 16},    {0, 17},   {0, 18}, {2, 40}, {17, 17},
                       {18, 30}, {0, 129}, {140, 200}, {0, 3000}, {5, -1}, {0, -1}};

TEST(Unfold, CharactersAreCountedHoweverTheyAreRepeated) {
  std::mt19937_64 random(7);
  for (const auto& [least, most] : kCases) {
    const std::string bounds = most < 0 ? fmt::format("{{{},}}", least) : fmt::format("{{{},{}}}", least, most);
    SCOPED_TRACE(bounds);
    const std::string gbnf = "root ::= \"\\\"\" char" + bounds + R"( "\""
        char ::= [^"\\\x7F\x00-\x1F] | [\\] (["\\bfnrt] | "u" [0-9a-fA-F]{4}))";
    const auto grammar = compiler().compile({.kind = Kind::kGbnf, .text = gbnf});
    int ended = 0;
    for (int i = 0; i < 6; ++i) {
      const Written written = write(Matcher(grammar), random, least);
      if (HasFailure()) return;
      if (!written.ended) continue;
      ++ended;
      EXPECT_GE(count_characters(written.text), least) << written.text;
      if (most >= 0) EXPECT_LE(count_characters(written.text), most) << written.text;
    }
    if (most > 0 && most < 200) EXPECT_GT(ended, 0);
    for (const int n : {least - 1, least, most, most + 1}) {
      if (n < 0) continue;
      Matcher matcher(grammar);
      std::string text = "\"";
      for (int i = 0; i < n; ++i) text += i % 3 == 0 ? "\\n" : i % 3 == 1 ? "\\u00e9" : "\u20ac";
      const bool fits = n >= least && (most < 0 || n <= most);
      EXPECT_EQ(matcher.accept_text(text + "\"") && matcher.whole(), fits) << n;
    }
  }
}

TEST(Unfold, SchemasCountCharacters) {
  std::mt19937_64 random(7);
  for (const auto& [least, most] : kCases) {
    if (most < 0) continue;
    SCOPED_TRACE(most);
    const auto grammar = compiler().compile(
        {.kind = Kind::kJsonSchema,
         .text =
             fmt::format(R"({{"type":"array","items":{{"type":"string","minLength":{},"maxLength":{}}},"minItems":1}})",
                         least, most)});
    for (int i = 0; i < 3 && !HasFailure(); ++i) write(Matcher(grammar), random, least, ' ');
    for (const int n : {least - 1, least, most, most + 1}) {
      if (n < 0) continue;
      Matcher matcher(grammar);
      std::string text = "[\"";
      for (int j = 0; j < n; ++j) text += j % 2 == 0 ? "a" : "\u20ac";
      EXPECT_EQ(matcher.accept_text(text + "\"]") && matcher.whole(), n >= least && n <= most) << n;
    }
  }
}

/// What is tried out at each step, of all states and tokens.
double uncertain_share(Kind kind, const std::string& text) {
  const auto grammar = compiler().compile({.kind = kind, .text = text});
  double uncertain = 0, all = 0;
  for (const auto& [state, mask] : grammar->impl().compiled->adaptive_token_mask_cache) {
    uncertain += static_cast<double>(mask.uncertain_indices.size());
    all += static_cast<double>(words().pieces.size());
  }
  return uncertain / all;
}

TEST(Unfold, MasksAreKnownAhead) {
  const std::string character = "\nchar ::= [^\"\\\\\\x00-\\x1F] | [\\\\] ([\"\\\\bfnrt] | \"u\" [0-9a-fA-F]{4})";
  for (const char* repeat : {"char*", "char{0,30}", "char{20,}", "char{0,3000}"})
    EXPECT_LT(uncertain_share(Kind::kGbnf, "root ::= \"\\\"\" " + std::string(repeat) + " \"\\\"\"" + character), 0.1)
        << repeat;
}

/// Masks of wide states take milliseconds each, with a real vocabulary: there must not be one for each count.
TEST(Unfold, CountsShareMasks) {
  const auto wide_states = [](int most) {
    const auto grammar = compiler().compile(
        {.kind = Kind::kJsonSchema, .text = fmt::format(R"({{"type":"string","maxLength":{}}})", most)});
    const auto& masks = grammar->impl().compiled->adaptive_token_mask_cache;
    return std::ranges::count_if(masks, [](const auto& state) {
      return state.second.store_type != xgrammar::AdaptiveTokenMask::StoreType::kAccepted;
    });
  };
  EXPECT_GT(wide_states(10), 0);
  EXPECT_LT(wide_states(4000), 100);
}

}  // namespace
}  // namespace coppice::grammar
