// Compiler and Matcher, on a vocabulary of bytes and a few longer words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

#include "grammar/compiler.h"
#include "grammar/matcher.h"
#include "grammar/work.h"
#include "port/turn.h"

namespace coppice::grammar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr kv::Token kEnd = 256, kControl = 257, kTrue = 258;

Words words() {
  Words words{.ends = {kEnd}};
  for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
  words.pieces.insert(words.pieces.end(), {"<end>", "", "true", "\"a\": \t"});
  return words;
}

const Compiler& compiler() {
  static const Compiler compiler(words());
  return compiler;
}

Matcher matcher(Kind kind, const std::string& text) {
  return Matcher(compiler().compile({.kind = kind, .text = text}));
}

bool allows(Matcher& m, kv::Token token) {
  const auto mask = m.mask();
  return mask.empty() ||
         ((static_cast<unsigned>(mask[static_cast<std::size_t>(token) / 32]) >> (token % 32)) & 1U) != 0;
}

/// The bytes that may come next, and "$" for the end.
std::string next(Matcher& m) {
  std::string out;
  for (kv::Token byte = 1; byte < 128; ++byte)
    if (allows(m, byte)) out += static_cast<char>(byte);
  return allows(m, kEnd) ? out + "$" : out;
}

/// Is it a text of the grammar? The mask must say of each byte what accept() says.
bool matches(Kind kind, const std::string& source, const std::string& text) {
  Matcher m = matcher(kind, source);
  for (const char c : text) {
    const kv::Token byte = static_cast<unsigned char>(c);
    const bool allowed = allows(m, byte);
    EXPECT_EQ(m.accept(byte), allowed) << text;
    if (!allowed) return false;
  }
  EXPECT_EQ(m.whole(), allows(m, kEnd)) << text;
  return m.whole();
}

std::string error_of(Kind kind, const std::string& text) {
  try {
    compiler().compile({.kind = kind, .text = text});
    return "";
  } catch (const GrammarError& e) {
    return e.what()[0] == '\0' ? "(no reason)" : e.what();
  }
}

TEST(Grammar, SaysWhatMayComeNext) {
  Matcher m = matcher(Kind::kGbnf, "root ::= \"ab\" | \"ac\" [0-9]");
  EXPECT_EQ(next(m), "a");
  EXPECT_TRUE(m.accept('a'));
  EXPECT_EQ(next(m), "bc");
  EXPECT_FALSE(m.accept('x'));
  EXPECT_EQ(next(m), "bc") << "a refused token changes nothing";
  EXPECT_TRUE(m.accept('b'));
  EXPECT_TRUE(m.whole());
  EXPECT_EQ(next(m), "$");
  EXPECT_TRUE(m.accept(kEnd));
  EXPECT_FALSE(m.accept('a')) << "after the end";
}

/// Each has a name of its own in the memory of compiled ones, whatever their texts are.
TEST(Grammar, IsNotMistakenForAnother) {
  const Compiler compiler(words());
  const std::string text = "root ::= r\nr ::= \"\"", schema = R"({"type":"null"})";
  const Source with_schema{.text = text, .schemas = {{"r", schema}}};
  const Source as_text{.text = text + "\nr ::= " + schema};
  compiler.compile(with_schema);
  EXPECT_TRUE(compiler.find(with_schema));
  EXPECT_FALSE(compiler.find(as_text));
}

TEST(Grammar, LongTokensCountByTheirBytes) {
  Matcher m = matcher(Kind::kJsonSchema, R"({"type": "boolean"})");
  EXPECT_TRUE(allows(m, kTrue));
  EXPECT_TRUE(m.accept(kTrue));
  EXPECT_TRUE(m.whole());
}

TEST(Grammar, ControlTokensNeverMatch) {
  Matcher m = matcher(Kind::kRegex, ".*");
  EXPECT_FALSE(allows(m, kControl));
  EXPECT_TRUE(allows(m, 'x'));
  EXPECT_TRUE(allows(m, kEnd));
}

TEST(Grammar, ClonesPartWays) {
  Matcher a = matcher(Kind::kRegex, "x(a|b)y");
  ASSERT_TRUE(a.accept('x'));
  Matcher b = a.clone();
  EXPECT_TRUE(a.accept('a'));
  EXPECT_EQ(next(a), "y");
  EXPECT_EQ(next(b), "ab");
  EXPECT_TRUE(b.accept_text("by"));
  EXPECT_TRUE(b.whole());
  EXPECT_FALSE(a.whole());
}

TEST(Grammar, RegexesAreOfTheWholeText) {
  EXPECT_TRUE(matches(Kind::kRegex, "[0-9]{2,3}", "123"));
  EXPECT_FALSE(matches(Kind::kRegex, "[0-9]{2,3}", "1"));
  EXPECT_FALSE(matches(Kind::kRegex, "[0-9]{2,3}", "1234"));
  EXPECT_TRUE(matches(Kind::kRegex, "(\\w+@)?example\\.com", "me@example.com"));
}

/// As Python's re.escape() writes them, and more.
TEST(Grammar, RegexesEscapeWhatTheyLike) {
  for (int c = 1; c < 128; ++c) {
    const bool control = c < ' ' && (c < '\t' || c > '\r');
    if (std::isalnum(c) != 0 || c == '_' || c == 0x7f || control) continue;
    const std::string sign(1, static_cast<char>(c));
    EXPECT_TRUE(matches(Kind::kRegex, "a\\" + sign + "b", "a" + sign + "b")) << sign;
    EXPECT_TRUE(matches(Kind::kRegex, "[a\\" + sign + "]{2}", sign + "a")) << sign;
  }
  EXPECT_TRUE(matches(Kind::kRegex, "\\é[\\é]", "éé"));
  EXPECT_THAT(error_of(Kind::kRegex, "\\q"), HasSubstr("not recognized")) << "it may mean something elsewhere";
}

TEST(Grammar, RegexesOfOtherDialects) {
  EXPECT_TRUE(matches(Kind::kRegex, "\\A(?P<n>a)(?i:b)(?#c)\\Z", "aB"));
  EXPECT_FALSE(matches(Kind::kRegex, "\\A(?P<n>a)(?i:b)(?#c)\\Z", "AB"));
  EXPECT_TRUE(matches(Kind::kRegex, "\\u00e9[\\u{e0}-\\u{e9}]\\x2d", "\u00e9\u00e0-"));
  EXPECT_TRUE(matches(Kind::kRegex, "(?i)[a-c]\\S", "B\u4e2d"));
  EXPECT_FALSE(matches(Kind::kRegex, "\\S", "\u3000"));
  EXPECT_FALSE(matches(Kind::kRegex, "(?i)[^k]", "\u212a"));
}

TEST(Grammar, BracesThatOpenNothingAreSigns) {
  EXPECT_TRUE(matches(Kind::kRegex, "{x}", "{x}"));
  EXPECT_TRUE(matches(Kind::kRegex, "\\[[{0-9]{2}]{}", "[{1]{}"));
  EXPECT_TRUE(matches(Kind::kRegex, "a{x{2}", "a{xx"));
}

TEST(Grammar, ManyToolsFitTogether) {
  Source source{.text = "root ::= \"a\""};
  for (int i = 0; i < 128; ++i) {
    const std::string name = "t" + std::to_string(i);
    source.text += " | " + name;
    source.schemas[name] = R"({"const":")" + std::string(600, 'x') + name + "\"}";
  }
  for (const auto& [name, schema] : source.schemas) source.text += "\n" + name + " ::= \"\"";
  Matcher m(compiler().compile(source, 60));  // sanitizers make it slow
  EXPECT_TRUE(m.accept_text('"' + std::string(600, 'x') + "t127\""));
}

/// A thread that works in turns.
class CountedTurns final : public port::Turn {
 public:
  CountedTurns() { port::set_turn(this); }
  ~CountedTurns() override { port::set_turn(nullptr); }
  CountedTurns(const CountedTurns&) = delete;
  CountedTurns& operator=(const CountedTurns&) = delete;
  void between_steps() noexcept override { ++n; }
  int n = 0;
};

TEST(Grammar, CompilesInTurns) {
  std::string items;
  for (int i = 0; i < 24; ++i)
    items += std::string(i == 0 ? "" : ",") + R"({"type":"integer","multipleOf":)" + std::to_string(970 + i) + "}";
  const Source source{.kind = Kind::kJsonSchema, .text = R"({"type":"array","prefixItems":[)" + items + "]}"};
  CountedTurns turns;
  try {
    compiler().compile(source);
  } catch (const WorkError&) {  // where sanitizers make it slow
  }
  EXPECT_GT(turns.n, 1000);
}

TEST(Grammar, KnowsGbnf) {
  // As llama.cpp's own grammars write it.
  const std::string list =
      "root ::= item+ # a comment\n\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"\n";
  EXPECT_TRUE(matches(Kind::kGbnf, list, "- a\n- b\n"));
  EXPECT_FALSE(matches(Kind::kGbnf, list, "a\n"));
  const std::string sum =
      "root  ::= (expr \"=\" term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\nterm  ::= num | \"(\" expr \")\"\n"
      "num   ::= [0-9]{1,3}\n";
  EXPECT_TRUE(matches(Kind::kGbnf, sum, "1+(2*3)=7\n"));
  EXPECT_FALSE(matches(Kind::kGbnf, sum, "1+=7\n"));
}

TEST(Grammar, ChoicesAreTakenAsTheyAre) {
  const std::vector<std::string> texts = {"yes", "no \"quoted\"", "back\\slash", "line\nbreak", "caf\xc3\xa9"};
  const Source source = choice_of(texts);
  for (const std::string& text : texts) EXPECT_TRUE(matches(source.kind, source.text, text)) << text;
  EXPECT_FALSE(matches(source.kind, source.text, "yesno"));
  EXPECT_FALSE(matches(source.kind, source.text, "line"));
}

TEST(Grammar, StructuralTagsBeginInTheMiddle) {
  const std::string tag =
      R"({"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<call>"], "tags": [
    {"type": "tag", "begin": "<call>", "content": {"type": "json_schema", "json_schema": {"type": "integer"}}, "end": "</call>"}]}})";
  EXPECT_TRUE(matches(Kind::kStructuralTag, tag, "so <call>12</call> it is"));
  EXPECT_FALSE(matches(Kind::kStructuralTag, tag, "so <call>x</call>"));
}

/// A token without a text comes where its rule stands, and in no text.
TEST(Grammar, RulesMayBeTokens) {
  Words with_two = words();
  with_two.pieces.emplace_back("");
  const kv::Token mark = kControl, other = static_cast<kv::Token>(with_two.pieces.size()) - 1;
  const Compiler compiler(with_two);
  const Source marked{.kind = Kind::kGbnf,
                      .text = "root ::= a b* (\"<e>\" | t)\nt ::= [{]\na ::= [{]\nb ::= [^<]",
                      .schemas = {{"a", R"({"type":"string"})"}},
                      .tokens = {{"t", mark}}};
  Matcher m(compiler.compile(marked));
  EXPECT_TRUE(m.accept_text("\"x"));
  EXPECT_FALSE(allows(m, mark)) << "a string has no mark";
  EXPECT_TRUE(m.accept_text("y\" free"));
  EXPECT_TRUE(allows(m, mark));
  EXPECT_FALSE(allows(m, other));
  EXPECT_FALSE(m.accept(other));
  for (kv::Token byte = 0x80; byte < 0x100; ++byte) EXPECT_EQ(allows(m, byte), byte >= 0xc2 && byte < 0xf5) << byte;
  EXPECT_TRUE(m.accept(mark));
  EXPECT_TRUE(m.whole());
  Source otherwise = marked;
  otherwise.tokens["t"] = other;
  Matcher second(compiler.compile(otherwise));
  EXPECT_TRUE(second.accept_text("\"\""));
  EXPECT_FALSE(allows(second, mark)) << "another grammar, though the text is the same";
  EXPECT_TRUE(second.accept(other));
  Matcher free(compiler.compile({.kind = Kind::kGbnf, .text = "root ::= [^<]*"}));
  EXPECT_FALSE(allows(free, mark));
}

/// JSON has none in its strings, and other text beside it may have any: a model writes code there.
TEST(Grammar, ControlCharactersStandInTextBesideSchemas) {
  const Source source{.kind = Kind::kGbnf,
                      .text = "root ::= [^<]* \"<\" a\na ::= [{]",
                      .schemas = {{"a", R"({"type":"array","items":{"type":"string","maxLength":5}})"}}};
  Matcher m(compiler().compile(source));
  for (const char c : {'\t', '\r', '\n', '\v'}) EXPECT_TRUE(allows(m, static_cast<kv::Token>(c))) << int{c};
  EXPECT_TRUE(m.accept('\t'));
  EXPECT_TRUE(m.accept_text("<[\""));
  for (const char c : {'\t', '\r', '\n', '\v'}) EXPECT_FALSE(allows(m, static_cast<kv::Token>(c))) << int{c};
  EXPECT_TRUE(allows(m, 'x'));
}

TEST(Grammar, RulesMayBeSchemas) {
  const auto at = [](const std::string& schema, const std::string& text) {
    Matcher m(compiler().compile({.kind = Kind::kGbnf,
                                  .text = "root ::= \"<a>\" a \"</a>\" b?\na ::= [{]\nb ::= \"x\"",
                                  .schemas = {{"a", schema}, {"b", R"({"const":"b"})"}}}));
    return m.accept_text(text) && m.whole();
  };
  const std::string range =
      R"({"type":"object","properties":{"n":{"type":"integer","minimum":5,"maximum":7}},"required":["n"]})";
  EXPECT_TRUE(at(range, R"(<a>{"n": 6}</a>)"));
  EXPECT_TRUE(at(range, R"(<a>{"n": 6}</a>"b")"));
  EXPECT_FALSE(at(range, R"(<a>{"n": 8}</a>)"));
  EXPECT_FALSE(at(range, R"(<a>{"n":  6}</a>)")) << "one blank, or a model may never come to an end";
  EXPECT_FALSE(at(R"({"const":"a"})", R"(<a>{"n": 6}</a>)")) << "the text is the same, and not the schema";
  Matcher bounded(compiler().compile({.kind = Kind::kGbnf,
                                      .text = "root ::= a\na ::= [{]",
                                      .schemas = {{"a", R"({"type":"string","maxLength":5})"}}}));
  EXPECT_TRUE(bounded.accept_text("\"a"));
  EXPECT_TRUE(allows(bounded, 'b'));
  EXPECT_FALSE(allows(bounded, '\t'));
  EXPECT_THROW(
      compiler().compile({.kind = Kind::kGbnf, .text = "root ::= \"a\"", .schemas = {{"b", R"({"const":1})"}}}),
      GrammarError);
  const std::string long_one = R"({"const":")" + std::string(kMaxSourceBytes, 'x') + "\"}";
  EXPECT_THROW(compiler().compile({.kind = Kind::kGbnf, .text = "root ::= a\na ::= [{]", .schemas = {{"a", long_one}}}),
               GrammarError);
}

TEST(Grammar, StringsOfBoundedLengthHoldNoControlCharacters) {
  // XGrammar lets a tab through here, which JSON doesn't.
  const std::string schema = R"({"type": "string", "maxLength": 5})";
  EXPECT_TRUE(matches(Kind::kJsonSchema, schema, "\"a b\""));
  EXPECT_FALSE(matches(Kind::kJsonSchema, schema, "\"a\tb\""));
  EXPECT_FALSE(matches(Kind::kJsonSchema, schema, "\"abcdef\""));
}

TEST(Grammar, JsonHasNoEndlessBlanks) {
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"array"},"b":{}},"required":["a","b"],"additionalProperties":false})";
  EXPECT_TRUE(matches(Kind::kJsonSchema, schema, "{\n\"a\" : [ 1 , 2 ] , \"b\" : { \"c\" : null } }"));
  for (const char* text : {"{  ", "{\"a\":  ", "{\"a\": [  ", "{\"a\": [1  ", "{\"a\": [],  ", "{\"a\": [], \"b\": {  ",
                           "{\"a\": [], \"b\": {\"c\":  ", "{\"a\": [], \"b\": [[1,  "})
    EXPECT_FALSE(matcher(Kind::kJsonSchema, schema).accept_text(text)) << text;
  Matcher spaced(compiler().compile({.kind = Kind::kJsonSchema, .text = schema, .spaced = true}));
  EXPECT_FALSE(spaced.clone().accept_text("{ "));
  EXPECT_FALSE(spaced.clone().accept_text("{\"a\":["));
  EXPECT_TRUE(spaced.accept_text("{\"a\": [1, 2], \"b\": {\"c\": null}}"));
  EXPECT_TRUE(spaced.whole());
}

TEST(Grammar, BadSourcesAreRefusedWithAReason) {
  EXPECT_THAT(error_of(Kind::kRegex, "(a"), HasSubstr("parenthesis"));
  EXPECT_THAT(error_of(Kind::kRegex, "a(?=b)"), HasSubstr("ookahead"));
  EXPECT_THAT(error_of(Kind::kRegex, "[z-a]"), Not(IsEmpty()));
  EXPECT_THAT(error_of(Kind::kGbnf, "root ::= undefined"), HasSubstr("undefined"));
  EXPECT_THAT(error_of(Kind::kGbnf, "start ::= \"a\""), HasSubstr("root"));
  EXPECT_THAT(error_of(Kind::kGbnf, "root ::= \"a"), Not(IsEmpty()));
  EXPECT_THAT(error_of(Kind::kStructuralTag, "{"), Not(IsEmpty()));
  EXPECT_THAT(error_of(Kind::kStructuralTag, "888e888"), Not(IsEmpty())) << "XGrammar says nothing";
  EXPECT_THAT(error_of(Kind::kJsonSchema, R"({"type": "no such type"})"), HasSubstr("no such type"));
}

TEST(Grammar, WhatXgrammarWouldLeaveOutIsAnError) {
  EXPECT_THAT(error_of(Kind::kJsonSchema, R"({"type": "number", "multipleOf": 0.1})"), HasSubstr("multipleOf"));
  EXPECT_THAT(error_of(Kind::kJsonSchema, R"({"allOf": [{"type": "string"}, {"minLength": 1}]})"), HasSubstr("allOf"));
}

TEST(Grammar, SizesAreBounded) {
  EXPECT_THAT(error_of(Kind::kRegex, std::string(kMaxRegexBytes + 1, 'a')), HasSubstr("is the most"));
  EXPECT_THAT(error_of(Kind::kRegex, std::string(1000, '(') + std::string(1000, ')')), HasSubstr("nests deeper"));
  std::string many = "root ::=";  // each of these characters that may come is a state
  for (int i = 0; i < 30; ++i) many += " [^!-" + std::string(1, static_cast<char>('$' + i)) + "]{0,120}";
  EXPECT_THAT(error_of(Kind::kGbnf, many), HasSubstr("are the most"));
  EXPECT_THAT(error_of(Kind::kRegex, std::string("a\0b", 3)), HasSubstr("zero"));
}

/// Each byte more takes the square of the text's length: minutes for this text.
TEST(Grammar, AmbiguousOnesEndBeforeTheyCostMuch) {
  Matcher m = matcher(Kind::kGbnf, R"(root ::= root root | "a")");
  const auto read = [&m] {
    for (int i = 0; i < 20000; ++i) {
      m.mask();
      ASSERT_TRUE(m.accept('a'));
    }
  };
  EXPECT_THROW(read(), GrammarError);
}

TEST(Grammar, TheCacheKeepsWhatWasUsedLast) {
  const Compiler small(words(), 20000);
  const auto first = small.compile({.kind = Kind::kRegex, .text = "a"});
  EXPECT_EQ(small.compile({.kind = Kind::kRegex, .text = "a"}), first);
  for (int i = 0; i < 100; ++i) {
    small.compile({.kind = Kind::kRegex, .text = "b{" + std::to_string(i + 1) + "}"});
    EXPECT_LE(small.cached_bytes(), 20000U);
  }
  EXPECT_NE(small.compile({.kind = Kind::kRegex, .text = "a"}), first) << "evicted, and compiled anew";
}

TEST(Grammar, TheCacheKeepsThoseOfAKeyThatHasFew) {
  const Compiler small(words(), 20000);
  const auto first = small.compile({.kind = Kind::kRegex, .text = "a", .payer = "few"});
  for (int i = 0; i < 100; ++i) {
    small.compile({.kind = Kind::kRegex, .text = "b{" + std::to_string(i + 1) + "}", .payer = "many"});
    EXPECT_LE(small.cached_bytes(), 20000U);
  }
  EXPECT_EQ(small.compile({.kind = Kind::kRegex, .text = "a", .payer = "other"}), first);
}

TEST(Grammar, SameTextOfAnotherKindIsAnother) {
  EXPECT_NE(compiler().compile({.kind = Kind::kRegex, .text = "root ::= \"a\""}),
            compiler().compile({.kind = Kind::kGbnf, .text = "root ::= \"a\""}));
}

// A repeated class as a name of properties: XGrammar's cache of rules fails on it.
TEST(Grammar, RepeatedPatternsOfNamesCompile) {
  const std::string schema = R"({"type": "object", "patternProperties": {"[0-9a-z]{1,255}": {"type": "integer"}},
                                 "additionalProperties": false})";
  EXPECT_TRUE(matches(Kind::kJsonSchema, schema, R"({"abc": 1})"));
  EXPECT_FALSE(matches(Kind::kJsonSchema, schema, R"({"": 1})"));
}

}  // namespace
}  // namespace coppice::grammar
