#include "grammar/gbnf.h"

#include <gtest/gtest.h>

#include "grammar/compiler.h"

namespace coppice::grammar {
namespace {

TEST(Gbnf, AnAlternativeOfNothingIsWrittenOut) {
  EXPECT_EQ(with_empty_strings(R"(ws ::= | " ")"), R"(ws ::= "" | " ")");
  EXPECT_EQ(with_empty_strings(R"(a ::= "x" (| "y") ("z" |))"), R"(a ::= "x" ("" | "y") ("z" |"" ))");
  EXPECT_EQ(with_empty_strings("a ::= # why | not\n | b"), "a ::= # why | not\n \"\" | b");
}

TEST(Gbnf, StringsClassesAndCommentsStay) {
  for (const char* text :
       {R"g(root ::= "(|" [|)] "\"|)" | a)g", R"(root ::= [^\]|] ([a] | [b]) # (|))", "root ::= a{1,2} | b"})
    EXPECT_EQ(with_empty_strings(text), text);
}

TEST(Gbnf, XGrammarsOwnWordsAreRefused) {
  for (const char* text : {R"(root ::= Regex("a+"))", R"(root ::= "a" Token (5))", R"(root[max_chars=3] ::= "a"+)",
                           R"(root ::= "a" (= "b"))", "root ::= TagDispatch((\"<a>\", x))\nx ::= \"b\"",
                           "root ::= \"a\"\na [lazy] ::= \"b\""})
    EXPECT_THROW(refuse_extensions(text), GrammarError) << text;
  for (const char* text : {R"(root ::= "Regex(" [(=] token a[a-z] # Token(5))", R"(root ::= my-Token ("=" | Tokens))"})
    EXPECT_NO_THROW(refuse_extensions(text)) << text;
}

TEST(Gbnf, BracketsInStringsAndClassesDontNest) {
  Words words{.ends = {256}};
  for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
  words.pieces.emplace_back("");
  const Compiler compiler(words);
  const std::string many(static_cast<std::size_t>(2 * kMaxSourceDepth), '(');
  EXPECT_NE(compiler.compile({.kind = Kind::kGbnf, .text = "root ::= \"" + many + "\" [" + many + "]"}), nullptr);
  EXPECT_THROW(compiler.compile({.kind = Kind::kGbnf, .text = "root ::= " + many}), GrammarError);
  EXPECT_THROW(compiler.compile({.kind = Kind::kGbnf, .text = "root ::= ]]]]]]" + many}), GrammarError);
  EXPECT_NE(compiler.compile({.kind = Kind::kRegex, .text = "a[" + many.substr(0, 200) + "]"}), nullptr);
}

TEST(Gbnf, LlamaCppsWhiteSpaceCompiles) {
  Words words{.ends = {256}};
  for (int byte = 0; byte < 256; ++byte) words.pieces.emplace_back(1, static_cast<char>(byte));
  words.pieces.emplace_back("");
  const Compiler compiler(words);
  EXPECT_NE(compiler.compile(
                {.kind = Kind::kGbnf, .text = "root ::= \"a\" ws \"b\"\nws ::= | \" \" | \"\\n\"{1,2} [ \\t]{0,20}"}),
            nullptr);
}

}  // namespace
}  // namespace coppice::grammar
