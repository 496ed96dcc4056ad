#include "text/vocabulary.h"

#include <fmt/format.h>
#include <gguf.h>
#include <gmock/gmock.h>
#include <llama.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "text/fixtures.h"
#include "text/utf8_stream.h"

namespace coppice::text {
namespace {

using kv::Token;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

nlohmann::json id_fixture() {
  std::ifstream in = test::open_fixture("tokenizer_ids.json");
  return nlohmann::json::parse(in);
}

// Ids from the `tokenizers` package (tests/fixtures/make_tokenizer_ids.py).
TEST(Vocabulary, TokenizesAsAnIndependentImplementationDoes) {
  const nlohmann::json cases = id_fixture();
  ASSERT_GE(cases.size(), 30U);
  for (const auto& c : cases) {
    const std::string text = c["text"];
    EXPECT_EQ(test::vocabulary()->tokenize(text, true, false), c["plain"].get<std::vector<Token>>()) << text;
    EXPECT_EQ(test::vocabulary()->tokenize(text, true, true), c["special"].get<std::vector<Token>>()) << text;
  }
}

/// One of llama.cpp's vocabularies. `name`: of a control token in it, which is made a user-defined one.
std::shared_ptr<const Vocabulary> of_llama_cpp(const std::string& file, const std::string& name = "") {
  std::filesystem::path path = std::string(COPPICE_VOCABULARIES) + "/ggml-vocab-" + file + ".gguf";
  if (name.empty()) return std::make_shared<const Vocabulary>(path);
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> gguf(
      gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}), gguf_free);
  const auto token = std::make_shared<const Vocabulary>(path)->tokenize(name, false, true).back();
  const auto key = gguf_find_key(gguf.get(), "tokenizer.ggml.token_type");
  const auto* types = static_cast<const std::int32_t*>(gguf_get_arr_data(gguf.get(), key));
  std::vector<std::int32_t> changed(types, types + gguf_get_arr_n(gguf.get(), key));
  changed.at(static_cast<std::size_t>(token)) = LLAMA_TOKEN_TYPE_USER_DEFINED;
  gguf_set_arr_data(gguf.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, changed.data(), changed.size());
  path = std::filesystem::temp_directory_path() / fmt::format("coppice-user-defined-{}.gguf", getpid());
  if (!gguf_write_to_file(gguf.get(), path.c_str(), true)) throw std::runtime_error("cannot write " + path.string());
  auto vocabulary = std::make_shared<const Vocabulary>(path);
  std::filesystem::remove(path);
  return vocabulary;
}

// Control tokens, and user-defined ones, which libllama finds in any text; of byte pairs, and where each text gets a
// space.
TEST(MarkedNames, AreText) {
  struct Case {
    const char* vocabulary;
    const char* name;
  };
  for (const Case& c : {Case{"qwen2", "<|im_end|>"}, Case{"phi-3", "<|end|>"}, Case{"llama-spm", "</s>"}}) {
    for (const bool user_defined : {false, true}) {
      SCOPED_TRACE(fmt::format("{} {}", c.vocabulary, user_defined));
      const std::string name = c.name, text = "one " + name + " two" + name + "!";
      const auto vocabulary = of_llama_cpp(c.vocabulary, user_defined ? name : "");
      const std::size_t first = 4, second = text.size() - 1 - name.size();
      const std::vector<TextSpan> both = {{first, first + name.size()}, {second, second + name.size()}};
      const Token special = vocabulary->tokenize(name, false, true).back();
      const auto count = [&](std::span<const TextSpan> plain) {
        return std::ranges::count(vocabulary->tokenize({text, plain}, false, true), special);
      };
      EXPECT_EQ(count({}), 2);
      EXPECT_EQ(count(std::span(both).first(1)), 1);
      EXPECT_EQ(count(both), 0);
      const std::string back = vocabulary->detokenize(vocabulary->tokenize({text, both}, false, true), true);
      EXPECT_EQ(back.substr(back.starts_with(' ') ? 1 : 0), text);
    }
  }
}

/// Only recognition is off: the text between is one piece.
TEST(MarkedNames, OfControlTokensDoNotCutTheText) {
  const auto vocabulary = of_llama_cpp("qwen2");
  const std::string text = "of<|im_end|>ten";
  const std::vector<TextSpan> plain = {{2, 12}};
  EXPECT_EQ(vocabulary->tokenize({text, plain}, false, true), vocabulary->tokenize(text, false, false));
}

TEST(Vocabulary, DetokenizeGivesTheTextBack) {
  for (const auto& c : id_fixture()) {
    const std::string text = c["text"];
    EXPECT_EQ(test::vocabulary()->detokenize(c["plain"].get<std::vector<Token>>()), text);
    EXPECT_EQ(test::vocabulary()->detokenize(c["special"].get<std::vector<Token>>(), true), text);
  }
}

TEST(Vocabulary, RandomTextComesBack) {
  std::mt19937_64 random = test::seeded_random();
  const auto vocabulary = test::vocabulary();
  for (int round = 0; round < 500; ++round) {
    std::string bytes;
    for (std::size_t n = test::pick_below(random, 60); n > 0; --n) {
      bytes +=
          vocabulary->piece(static_cast<Token>(test::pick_below(random, static_cast<std::size_t>(vocabulary->size()))));
    }
    const std::string text = to_utf8(bytes);
    ASSERT_EQ(vocabulary->detokenize(vocabulary->tokenize(text, false, false)), text) << "round " << round;
  }
}

TEST(Vocabulary, SpecialTokensAreEmptyUnlessAskedFor) {
  const auto vocabulary = test::vocabulary();
  EXPECT_EQ(vocabulary->piece(1), "");
  EXPECT_EQ(vocabulary->piece(1, true), "<|im_start|>");
  EXPECT_EQ(vocabulary->detokenize(std::vector<Token>{1, 4093, 198, 26843, 2}), "user\nHi");
}

TEST(Vocabulary, KnowsItsEnds) {
  const auto vocabulary = test::vocabulary();
  EXPECT_EQ(vocabulary->size(), 49152);
  EXPECT_TRUE(vocabulary->is_end(2));
  EXPECT_TRUE(vocabulary->is_end(0));  // <|endoftext|>
  EXPECT_FALSE(vocabulary->is_end(1));
  EXPECT_FALSE(vocabulary->is_end(-1));
  EXPECT_FALSE(vocabulary->is_end(vocabulary->size()));
  for (const Token token : vocabulary->end_tokens()) EXPECT_TRUE(vocabulary->is_end(token));
  EXPECT_EQ(vocabulary->piece(-1), "");
  EXPECT_EQ(vocabulary->piece(vocabulary->size(), true), "");
}

TEST(Vocabulary, LongTextTokenizes) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "x1";  // more tokens than half the bytes: the first guess is too small
  const std::vector<Token> tokens = test::vocabulary()->tokenize(text, false, false);
  EXPECT_GE(tokens.size(), 40000U);
  EXPECT_EQ(test::vocabulary()->detokenize(tokens), text);
}

std::vector<Token> llamas_tokens(const std::string& text, bool parse_special) {
  std::vector<Token> tokens(text.size() + 8);
  const auto n = llama_tokenize(llama_model_get_vocab(test::vocabulary()->model()), text.data(),
                                static_cast<std::int32_t>(text.size()), tokens.data(),
                                static_cast<std::int32_t>(tokens.size()), true, parse_special);
  EXPECT_GE(n, 0);
  tokens.resize(static_cast<std::size_t>(n));
  return tokens;
}

TEST(Vocabulary, FindsSpecialTokensWhereTheLibraryDoes) {
  std::mt19937_64 random = test::seeded_random();
  const auto vocabulary = test::vocabulary();
  const std::vector<std::string> parts = {"<|im_start|>",
                                          "<|im_end|>",
                                          "<|endoftext|>",
                                          "<|im_",
                                          "start|>",
                                          "<",
                                          "|",
                                          "<|",
                                          " ",
                                          "  ",
                                          "\n",
                                          "user",
                                          "é",
                                          "1",
                                          "<file_sep>",
                                          "<jupyter_code>"};
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::size_t n = test::pick_below(random, 12); n > 0; --n)
      text += parts[test::pick_below(random, parts.size())];
    for (const bool parse : {false, true}) {
      ASSERT_EQ(vocabulary->tokenize(text, true, parse), llamas_tokens(text, parse)) << text << ", parse " << parse;
    }
  }
}

// With a walk over all specials found so far for each further one this takes hours.
TEST(Vocabulary, TwoMillionSpecialTokens) {
  constexpr std::size_t kMany = 2'000'000;
  std::string text;
  for (std::size_t i = 0; i < kMany; ++i) text += "<|im_end|>";
  EXPECT_EQ(test::vocabulary()->tokenize(text, true, true), std::vector<Token>(kMany, 2));
}

/// A SentencePiece vocabulary of a few pieces, and of what stands for bytes only the newline's.
std::filesystem::path write_few_pieces() {
  std::vector<const char*> pieces = {"<unk>", "<s>", "</s>", "\xe2\x96\x81", "a", "b", "<0x0A>"};
  const std::vector<float> scores(pieces.size(), 0.0F);
  const std::vector<std::int32_t> types = {2, 3, 3, 1,
                                           1, 1, 6};  // unknown, control, control, normal, normal, normal, byte
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("coppice-few-pieces-{}.gguf", getpid());
  const std::unique_ptr<gguf_context, decltype(&gguf_free)> file(gguf_init_empty(), gguf_free);
  gguf_set_val_str(file.get(), "general.architecture", "llama");
  gguf_set_val_str(file.get(), "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(file.get(), "tokenizer.ggml.tokens", pieces.data(), pieces.size());
  gguf_set_arr_data(file.get(), "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
  gguf_set_arr_data(file.get(), "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  if (!gguf_write_to_file(file.get(), path.c_str(), false)) throw std::runtime_error("cannot write " + path.string());
  return path;
}

// libllama fails there with "unordered_map::at", which came to clients as an internal error.
TEST(Vocabulary, CharactersWithoutTokensAreNamedAsThat) {
  const std::filesystem::path path = write_few_pieces();
  const Vocabulary vocabulary(path);
  std::filesystem::remove(path);
  EXPECT_THAT(vocabulary.tokenize("ab\n", false, false), ElementsAre(3, 4, 5, 6));
  EXPECT_THROW(vocabulary.tokenize("abc", false, false), UnknownCharacter);
}

TEST(Vocabulary, ManyThreadsAtOnce) {
  const nlohmann::json cases = id_fixture();
  std::vector<int> wrong(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        for (const auto& c : cases) {
          const auto ids = test::vocabulary()->tokenize(c["text"].get<std::string>(), true, true);
          wrong[t] += ids != c["special"].get<std::vector<Token>>();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

// libllama's split by std::regex takes stack for each character of a match.
TEST(Vocabulary, LongRunsOfOneKindDontEndTheProcess) {
  for (const char* name : {"aquila", "deepseek-coder", "deepseek-llm", "falcon", "gpt-neox"}) {
    const Vocabulary vocabulary(std::filesystem::path(COPPICE_VOCABULARIES) / fmt::format("ggml-vocab-{}.gguf", name));
    for (const char* piece : {"a", "aB", " ", "\t\n", "7", "=", "=!", "\u4f60"}) {
      std::string text;
      while (text.size() < 100'000) text += piece;
      text += "?\n";
      EXPECT_EQ(vocabulary.detokenize(vocabulary.tokenize(text, false, false)), text) << name << " '" << piece << "'";
    }
  }
}

// Others put a space before each text that they are given: there a cut would show.
TEST(Vocabulary, LongRunsAreCutForBytePairsOnly) {
  const Vocabulary vocabulary(std::filesystem::path(COPPICE_VOCABULARIES) / "ggml-vocab-llama-spm.gguf");
  const std::string text(20'000, 'a');
  EXPECT_EQ(vocabulary.detokenize(vocabulary.tokenize(text, false, false)), " " + text);
}

std::string load_error(const std::string& path) {
  try {
    const Vocabulary vocabulary(path);
    return "loaded";
  } catch (const VocabularyError& e) {
    return e.what();
  }
}

TEST(Vocabulary, SaysWhatIsWrongWithAFile) {
  EXPECT_THAT(load_error("no/such/file.gguf"), HasSubstr("no such file"));
  const std::filesystem::path bad =
      std::filesystem::temp_directory_path() / ("coppice_bad_" + std::to_string(std::random_device{}()) + ".gguf");
  std::ofstream(bad) << "this is not a model";
  testing::internal::CaptureStderr();
  EXPECT_THAT(load_error(bad.string()), HasSubstr("magic"));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "libllama's log must not reach the terminal";

  std::string head(4096, '\0');
  std::ifstream(test::model_path(), std::ios::binary).read(head.data(), static_cast<std::streamsize>(head.size()));
  std::ofstream(bad, std::ios::binary) << head;  // the file cut off within its metadata
  EXPECT_NE(load_error(bad.string()), "loaded");
  std::filesystem::remove(bad);
}

}  // namespace
}  // namespace coppice::text
