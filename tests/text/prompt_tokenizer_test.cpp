// Compared with the vocabulary itself, for every vocabulary that comes with llama.cpp's sources.
#include "text/prompt_tokenizer.h"

#include <fmt/printf.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <thread>

#include "support/long_form.h"
#include "support/sanitized.h"
#include "text/fixtures.h"

namespace coppice::text {
namespace {

using kv::Token;
constexpr std::size_t kRoom = 1 << 20;
const int kRounds = test::kSanitized ? 3 : test::long_form() ? 20 : 6;

std::string words(std::mt19937_64& random, std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i) {
    if (i > 0) text += ' ';
    for (std::size_t letters = 3 + test::pick_below(random, 6); letters > 0; --letters) {
      text += static_cast<char>('a' + static_cast<char>(test::pick_below(random, 26)));
    }
  }
  return text;
}

/// What text is made of; words more often than anything else.
std::string random_text(std::mt19937_64& random, std::size_t n) {
  static const std::vector<std::string> parts = {" ",
                                                 "  ",
                                                 "\n",
                                                 "\n\n",
                                                 "\t",
                                                 " \n ",
                                                 "   ",
                                                 ".",
                                                 ",",
                                                 "!?",
                                                 "'s",
                                                 "'ll",
                                                 "don't",
                                                 " I'm",
                                                 " 12345",
                                                 " 3.14",
                                                 "007",
                                                 "-",
                                                 "_",
                                                 "/",
                                                 "()",
                                                 "{ x; }",
                                                 "==",
                                                 "é",
                                                 "naïve",
                                                 "你好",
                                                 " 世界",
                                                 " мир",
                                                 "🙂",
                                                 "ﬁ",
                                                 "\xC2\xA0word",
                                                 "\r\n",
                                                 " a b c ",
                                                 "X Y",
                                                 "<|",
                                                 "<|im_start|>",
                                                 "\"a\":",
                                                 "x(",
                                                 "b)",
                                                 "[c]",
                                                 "{d",
                                                 "e}",
                                                 "f=",
                                                 "，",
                                                 "世，",
                                                 "界。\n",
                                                 "дом ",
                                                 "été(",
                                                 "か\n",
                                                 "한 글",
                                                 ";\n",
                                                 ".\"",
                                                 ",\n  ",
                                                 "://",
                                                 "\xE3\x80\x80",
                                                 "e\xCC\x81 a"};
  std::string text;
  for (std::size_t i = 0; i < n; ++i) {
    if (test::pick_below(random, 4) == 0) {
      text += parts[test::pick_below(random, parts.size())];
      continue;
    }
    if (test::pick_below(random, 3) != 0) text += ' ';
    for (std::size_t letters = 1 + test::pick_below(random, 9); letters > 0; --letters) {
      text += static_cast<char>((test::pick_below(random, 12) == 0 ? 'A' : 'a') +
                                static_cast<char>(test::pick_below(random, 26)));
    }
  }
  return text;
}

/// Some of the names in a text.
std::vector<TextSpan> random_marks(std::mt19937_64& random, const Vocabulary& vocabulary, const std::string& text) {
  std::vector<TextSpan> marks;
  for (std::size_t at = 0; const auto name = vocabulary.specials().find(text, at); at = name->end)
    if (test::pick_below(random, 2) == 0) marks.push_back({name->begin, name->end});
  return marks;
}

std::vector<std::filesystem::path> vocabularies() {
  std::vector<std::filesystem::path> files = {test::model_path()};
  for (const auto& entry : std::filesystem::directory_iterator(COPPICE_VOCABULARIES)) {
    if (entry.path().extension() == ".gguf") files.push_back(entry.path());
  }
  return files;
}

/// At all cuts at once, and not only some in each piece's length.
void expect_that_parts_join(const Vocabulary& vocabulary, std::string_view text) {
  const TextCuts cuts(vocabulary);
  std::vector<Token> whole, joined;
  vocabulary.append_plain(text, whole);
  std::string shown;
  for (std::size_t from = 0, end = 0; from < text.size(); from = end) {
    end = cuts.next(text, from + 1);
    shown.append(text.substr(from, end - from)).append("¦");
    vocabulary.append_plain(text.substr(from, end - from), joined);
  }
  ASSERT_EQ(joined, whole) << shown;
}

TEST(PromptTokenizer, GivesTheVocabularysTokens) {
  std::mt19937_64 random = test::seeded_random();
  std::set<std::string> cut;
  for (const auto& file : vocabularies()) {
    SCOPED_TRACE(file.filename());
    const auto vocabulary = std::make_shared<const Vocabulary>(file);
    PromptTokenizer tokenizer(vocabulary, kRoom);
    if (tokenizer.cuts()) cut.insert(file.stem());
    std::string text;
    for (int round = 0; round < kRounds; ++round) {  // each prompt keeps some of the one before
      text = text.substr(0, test::pick_below(random, text.size() + 1)) + random_text(random, 400);
      ASSERT_EQ(tokenizer.tokenize(text, ""), vocabulary->tokenize(text, true, true)) << text;
      if (round % 4 == 0) ASSERT_NO_FATAL_FAILURE(expect_that_parts_join(*vocabulary, text));
      const auto marks = random_marks(random, *vocabulary, text);  // the same text again, with names that are only text
      ASSERT_EQ(tokenizer.tokenize({text, marks}, ""), vocabulary->tokenize({text, marks}, true, true)) << text;
    }
    // Prose is remembered wherever texts can be cut. (Random text need not be: GPT-NeoX has special tokens of two and
    // more spaces, which leave pieces too short to keep.)
    const std::string prose = words(random, 200);
    tokenizer.tokenize(prose, "");
    const std::size_t hits = tokenizer.counts().hits;
    tokenizer.tokenize(prose, "");
    EXPECT_EQ(tokenizer.counts().hits > hits, tokenizer.cuts());
  }
  for (const std::string& name : cut) std::printf("cut: %s\n", name.c_str());
  for (const char* common : {"ggml-vocab-gpt-2", "ggml-vocab-llama-bpe", "ggml-vocab-qwen2"}) {
    EXPECT_TRUE(cut.contains(common)) << common << " is not cut: its prompts are tokenized whole each time";
  }
  EXPECT_TRUE(cut.contains(std::filesystem::path(test::model_path()).stem()));
}

// What agents send. Each is one line without a blank, and repeated with numbers that differ.
TEST(PromptTokenizer, RemembersCodeAndOtherScripts) {
  for (const char* part :
       {R"({"name":"get_weather","arguments":{"city":"Paris"},"id":%d})", "if(a.b(c%d)){return d[e];}\n",
        "字符串的第%d个，世界。你好\n", "https://example.com/some/path/%d?query=text&more=yes\n"}) {
    std::string text;
    for (int i = 0; text.size() < 20'000; ++i) text += fmt::sprintf(part, i);
    PromptTokenizer tokenizer(test::vocabulary(), kRoom);
    tokenizer.tokenize(text, "");
    EXPECT_GT(tokenizer.counts().bytes, text.size()) << part;
    const auto before = tokenizer.counts();
    EXPECT_EQ(tokenizer.tokenize(text + "!", ""), test::vocabulary()->tokenize(text + "!", true, true));
    EXPECT_LE(tokenizer.counts().misses, before.misses + 1) << part;
  }
}

std::string repeated(const std::string& part, std::size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

/// What takes many bytes a token, and what takes many tokens; all of them can be cut, or none.
std::vector<std::string> long_texts(std::mt19937_64& random) {
  constexpr std::size_t kBytes = 30'000;
  std::vector<std::string> texts = {words(random, 5'000), random_text(random, 6'000)};
  for (const char* part :
       {"a", " ", "=", "7", "\n", "ab", "你好", "é", "internationalization ", "<|im_end|>", "\xf0\x9f\x99\x82"})
    texts.push_back(repeated(part, kBytes));
  texts.push_back(repeated(" ", kBytes) + repeated("7", kBytes));  // few tokens, then many
  return texts;
}

TEST(PromptTokenizer, LeavesOutNothingOfATextThatFits) {
  std::mt19937_64 random = test::seeded_random();
  const std::filesystem::path folder(COPPICE_VOCABULARIES);
  for (const auto& file : {std::filesystem::path(test::model_path()), folder / "ggml-vocab-llama-spm.gguf"}) {
    SCOPED_TRACE(file.filename());
    const auto vocabulary = std::make_shared<const Vocabulary>(file);
    PromptTokenizer tokenizer(vocabulary, kRoom);
    for (const std::string& text : long_texts(random)) {
      SCOPED_TRACE(text.substr(0, 20));
      const auto all = vocabulary->tokenize(text, true, true);
      const std::size_t n = all.size();
      EXPECT_EQ(tokenizer.tokenize(text, "", n), all);
      EXPECT_EQ(vocabulary->tokenize(text, true, true, n), all);
      EXPECT_GT(tokenizer.tokenize(text, "", n - 1).size(), n - 1);
      EXPECT_GT(vocabulary->tokenize(text, true, true, n - 1).size(), n - 1);
    }
  }
}

TEST(PromptTokenizer, DoesNotReadATextOfTooManyTokensToItsEnd) {
  constexpr std::size_t kMost = 100;
  std::mt19937_64 random = test::seeded_random();
  for (const std::string& text : long_texts(random)) {
    SCOPED_TRACE(text.substr(0, 20));
    const auto full = test::vocabulary()->tokenize(text, true, true).size();
    PromptTokenizer tokenizer(test::vocabulary(), kRoom);
    for (const auto& tokens :
         {tokenizer.tokenize(text, "", kMost), test::vocabulary()->tokenize(text, true, true, kMost)}) {
      EXPECT_GT(tokens.size(), kMost);
      EXPECT_LT(tokens.size(), full);
    }
  }
}

TEST(PromptTokenizer, RemembersForTheSameSaltOnly) {
  std::mt19937_64 random = test::seeded_random();
  PromptTokenizer tokenizer(test::vocabulary(), kRoom);
  const std::string text = random_text(random, 2000);
  tokenizer.tokenize(text, "mine");
  const auto pieces = tokenizer.counts().misses;
  ASSERT_GT(pieces, 5U);
  EXPECT_EQ(tokenizer.counts().hits, 0U);
  tokenizer.tokenize(text, "");
  tokenizer.tokenize(text, "min");
  EXPECT_EQ(tokenizer.counts().hits, 0U) << "a piece of another tenant was found";
  tokenizer.tokenize(text, "mine1:" + text);  // salts are the clients' choice
  EXPECT_EQ(tokenizer.counts().hits, 0U);
  tokenizer.tokenize(text, "mine");
  EXPECT_EQ(tokenizer.counts().hits, pieces);
}

TEST(PromptTokenizer, KeepsToItsBudgetAndToWhatWasUsedLast) {
  std::mt19937_64 random = test::seeded_random();
  constexpr std::size_t kSmall = 64 << 10;
  PromptTokenizer tokenizer(test::vocabulary(), kSmall);
  const std::string kept = random_text(random, 1000);
  tokenizer.tokenize(kept, "");
  const auto pieces = tokenizer.counts().misses;
  for (int round = 0; round < 100; ++round) {
    tokenizer.tokenize(random_text(random, 1000), "");
    ASSERT_LE(tokenizer.counts().bytes, kSmall);
    const auto before = tokenizer.counts();
    tokenizer.tokenize(kept, "");
    ASSERT_EQ(tokenizer.counts().hits, before.hits + pieces);
  }
  EXPECT_GT(tokenizer.counts().bytes, kSmall / 2);
  PromptTokenizer none(test::vocabulary(), 0);
  EXPECT_EQ(none.tokenize(kept, ""), test::vocabulary()->tokenize(kept, true, true));
  EXPECT_EQ(none.counts().bytes, 0U);
}

TEST(PromptTokenizer, PayersDontPushOutEachOthersPieces) {
  std::mt19937_64 random = test::seeded_random();
  PromptTokenizer tokenizer(test::vocabulary(), 64 << 10);
  const std::string kept = random_text(random, 1000);
  tokenizer.tokenize(kept, "", Vocabulary::kAll, "few");
  const auto pieces = tokenizer.counts().misses;
  for (int round = 0; round < 100; ++round)
    tokenizer.tokenize(random_text(random, 1000), std::to_string(round), Vocabulary::kAll, "many");
  const auto before = tokenizer.counts();
  EXPECT_GT(before.bytes, 32 << 10);
  tokenizer.tokenize(kept, "", Vocabulary::kAll, "few");
  EXPECT_EQ(tokenizer.counts().hits, before.hits + pieces);
}

TEST(PromptTokenizer, ServesThreadsAtOnce) {
  std::mt19937_64 random = test::seeded_random();
  PromptTokenizer tokenizer(test::vocabulary(), 32 << 10);
  std::vector<std::string> texts;
  std::vector<std::vector<Token>> expected;
  for (int i = 0; i < 8; ++i) {
    texts.push_back(random_text(random, 500));
    expected.push_back(test::vocabulary()->tokenize(texts.back(), true, true));
  }
  std::vector<std::jthread> threads;
  for (std::size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (std::size_t i = 0; i < 40; ++i) {
        const std::size_t which = (i * (thread + 1)) % texts.size();
        EXPECT_EQ(tokenizer.tokenize(texts[which], ""), expected[which]);
      }
    });
  }
}

}  // namespace
}  // namespace coppice::text
