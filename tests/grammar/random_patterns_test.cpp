// Patterns of JSON Schemas in the words of Python, JavaScript and Perl: what a grammar lets be written matches, says
// another regex engine. COPPICE_SEED=n replays a run.
#include <gmock/gmock.h>

#include <array>
#include <boost/json/object.hpp>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <optional>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "grammar/schema/json_schema.h"
#include "grammar/source.h"

namespace coppice::grammar {
namespace {

/// The same regex in all words that we take, and in those of std::regex.
struct Twin {
  std::string ours, plain;
};

class PatternWriter {
 public:
  explicit PatternWriter(std::mt19937& random) : random_(random) {}

  Twin whole() {
    const bool no_case = below(6) == 0;
    Twin out = branches(2, no_case);
    // Anchors are of the outermost alternatives.
    out = {"(?:" + out.ours + ")", "(?:" + out.plain + ")"};
    if (below(2) == 0) out = {one_of({"^", "\\A"}) + out.ours, "^" + out.plain};
    if (below(2) == 0) append(out, {one_of({"$", "\\z", "\\Z"}), "$"});
    if (no_case) out.ours.insert(0, "(?i)");
    return out;
  }

 private:
  unsigned below(unsigned n) { return random_() % n; }
  template <class T>
  T one_of(const std::vector<T>& some) {
    return some[below(static_cast<unsigned>(some.size()))];
  }
  std::string one_of(std::initializer_list<const char*> some) {
    return one_of(std::vector<std::string>(some.begin(), some.end()));
  }
  static void append(Twin& to, const Twin& more) {
    to.ours += more.ours;
    to.plain += more.plain;
  }

  Twin branches(int depth, bool no_case) {
    Twin out = row(depth, no_case);
    for (unsigned i = below(3); i > 1; --i) append(out, {"|", "|"}), append(out, row(depth, no_case));
    return out;
  }

  Twin row(int depth, bool no_case) {
    Twin out;
    for (unsigned n = 1 + below(3); n > 0; --n) {
      append(out, atom(depth, no_case));
      if (below(6) == 0) out.ours += "(?#a *comment)";
      const std::string times = one_of({"", "", "", "?", "*", "+", "{2}", "{1,3}", "{2,}", "+?"});
      append(out, {times, times});
    }
    return out;
  }

  Twin atom(int depth, bool no_case) {
    if (depth > 0 && below(3) == 0) {
      const std::string name = "n" + std::to_string(n_groups_++) + ">";
      const auto [open, inner_no_case] = one_of(std::vector<std::pair<std::string, bool>>{{"(", no_case},
                                                                                          {"(?:", no_case},
                                                                                          {"(?P<" + name, no_case},
                                                                                          {"(?<" + name, no_case},
                                                                                          {"(?i:", true},
                                                                                          {"(?-i:", false}});
      const Twin inner = branches(depth - 1, inner_no_case);
      return {open + inner.ours + ")", "(?:" + inner.plain + ")"};
    }
    if (below(3) == 0) return bracket(no_case);
    // The third: without regard to case.
    static const std::vector<std::array<const char*, 3>> kAtoms = {{"a", "a", "[aA]"},
                                                                   {"K", "K", "[kK]"},
                                                                   {"s", "s", "[sS]"},
                                                                   {"7", "7", "7"},
                                                                   {"_", "_", "_"},
                                                                   {"\\x41", "A", "[aA]"},
                                                                   {"\\x2d", "-", "-"},
                                                                   {"\\u0062", "b", "[bB]"},
                                                                   {"\\u{43}", "C", "[cC]"},
                                                                   {"\\U00000064", "d", "[dD]"},
                                                                   {"\\d", "\\d", "\\d"},
                                                                   {"\\w", "\\w", "\\w"},
                                                                   {"\\s", "\\s", "\\s"},
                                                                   {"\\D", "\\D", "\\D"},
                                                                   {"\\W", "\\W", "\\W"},
                                                                   {"\\S", "\\S", "\\S"},
                                                                   {"\\.", "\\.", "\\."},
                                                                   {"\\x2e", "\\.", "\\."},
                                                                   {"\\-", "-", "-"},
                                                                   {" ", " ", " "},
                                                                   {"\\u0028", "\\(", "\\("},
                                                                   {".", ".", "."},
                                                                   {"\\u{2a}", "\\*", "\\*"},
                                                                   {"\\x7c", "\\|", "\\|"},
                                                                   {"@", "@", "@"}};
    const auto& one = one_of(kAtoms);
    return {one[0], one[no_case ? 2 : 1]};
  }

  Twin bracket(bool no_case) {
    static const std::vector<std::array<const char*, 3>> kMembers = {{"a", "a", "aA"},
                                                                     {"b-e", "b-e", "b-eB-E"},
                                                                     {"X", "X", "Xx"},
                                                                     {"0-4", "0-4", "0-4"},
                                                                     {"\\d", "\\d", "\\d"},
                                                                     {"\\w", "\\w", "\\w"},
                                                                     {"\\s", "\\s", "\\s"},
                                                                     {"\\W", "\\W", "\\W"},
                                                                     {"\\D", "\\D", "\\D"},
                                                                     {"\\S", "\\S", "\\S"},
                                                                     {"\\x46", "F", "Ff"},
                                                                     {"\\u0067", "g", "gG"},
                                                                     {"\\u{68}-k", "h-k", "h-kH-K"},
                                                                     {"\\.", ".", "."},
                                                                     {"_", "_", "_"},
                                                                     {"\\x5d", "\\]", "\\]"}};
    Twin out{"[", "["};
    if (below(3) == 0) append(out, {"^", "^"});
    for (unsigned n = 1 + below(3); n > 0; --n) {
      const auto& one = one_of(kMembers);
      append(out, {one[0], one[no_case ? 2 : 1]});
    }
    append(out, {"]", "]"});
    return out;
  }

  std::mt19937& random_;
  int n_groups_ = 0;
};

const Compiler& ascii_compiler() {
  static const Compiler compiler([] {
    Words words{.ends = {0}};
    for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
    return words;
  }());
  return compiler;
}

/// A text between the quotes, in ASCII; nullopt: the walk came to no end.
std::optional<std::string> walk_string(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random) {
  Matcher matcher(grammar);
  EXPECT_TRUE(matcher.accept_text("\""));
  std::string text;
  while (text.size() < 40) {
    const auto mask = matcher.mask();
    const auto allowed = [&](int byte) {
      return mask.empty() ||
             (static_cast<unsigned>(mask[static_cast<std::size_t>(byte) / 32]) >> (byte % 32) & 1U) != 0;
    };
    if (allowed('"') && random() % 3 == 0) return text;
    std::vector<int> letters;
    for (int byte = ' '; byte < 127; ++byte)
      if (byte != '"' && byte != '\\' && allowed(byte)) letters.push_back(byte);
    if (letters.empty()) return allowed('"') ? std::optional(text) : std::nullopt;
    const int byte = letters[random() % letters.size()];
    EXPECT_TRUE(matcher.accept(byte));
    text += static_cast<char>(byte);
  }
  return std::nullopt;
}

TEST(RandomPatterns, WhatIsWrittenMatches) {
  const char* given = std::getenv("COPPICE_SEED");
  const unsigned seed =
      given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
  std::cout << "COPPICE_SEED=" << seed << "\n";
  std::mt19937 random(seed);
  int held = 0, walked = 0;
  for (int i = 0; i < 300; ++i) {
    const Twin regex = PatternWriter(random).whole();
    SCOPED_TRACE(regex.ours + " as " + regex.plain);
    std::shared_ptr<const Grammar> grammar;
    try {
      const boost::json::object schema{{"type", "string"}, {"pattern", regex.ours}};
      grammar = ascii_compiler().compile({.kind = Kind::kJsonSchema, .text = enforceable_schema(schema)});
    } catch (const SchemaError& e) {
      // Nothing is left of some: a quote, a backslash and a control character are in no string with a pattern.
      ASSERT_THAT(e.what(), ::testing::HasSubstr("no string matches it"));
      continue;
    }
    ++held;
    // libstdc++'s other way takes exponential time for some.
    const std::regex other(regex.plain, std::regex::ECMAScript | std::regex_constants::__polynomial);
    for (int k = 0; k < 10; ++k) {
      const auto text = walk_string(grammar, random);
      if (!text) continue;
      ++walked;
      ASSERT_TRUE(std::regex_search(*text, other)) << *text;
    }
  }
  EXPECT_GE(held, 250);
  EXPECT_GE(walked, 1000);
}

}  // namespace
}  // namespace coppice::grammar
