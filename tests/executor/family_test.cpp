// Every family, on tiny random models with f32 weights, through the real cache: a whole prompt, a prompt in chunks, and
// sequences of one tree that decode together give the logits of libllama, which knows none of this.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "executor/exact_logits.h"
#include "executor/expect_parity.h"
#include "executor/tiny.h"
#include "support/cached_executor.h"
#include "support/family_models.h"
#include "support/libllama.h"

namespace coppice {
namespace {

using kv::Token;
using test::CachedExecutor;
using test::expect_parity;
using test::FamilyModel;
using test::random_tokens;
using test::Row;

constexpr int kDecodeSteps = 24;

class FamilyTest : public testing::TestWithParam<std::tuple<FamilyModel, const char*>> {
 protected:
  const FamilyModel& family() const { return std::get<0>(GetParam()); }
  std::string path() const { return test::tiny_path(family().name, family().model); }
  std::unique_ptr<executor::Executor> executor(int block_size = 8) const {
    return test::load(path(), std::get<1>(GetParam()), block_size);
  }
  /// Libllama's logits of all tokens, or of the last n.
  std::vector<Row> reference(std::span<const Token> tokens, std::size_t n_last = 0) const {
    return test::Libllama(path(), false, 1).feed(tokens, static_cast<int>(n_last > 0 ? n_last : tokens.size()));
  }

  std::mt19937 random_{7};
};

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest,
                         testing::Combine(testing::ValuesIn(test::family_models()),
                                          testing::Values("dense", "gather", "tree")),
                         [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param); });

TEST_P(FamilyTest, WholePromptAndDecodesAgreeWithLibllama) {
  const auto tokens = random_tokens(random_, 90 + kDecodeSteps);
  const auto e = executor(32);
  CachedExecutor cached(*e);
  std::vector<Row> rows;
  const kv::SeqId seq = cached.start(std::span(tokens).first(90), 256, &rows);
  for (std::size_t i = 90; i < tokens.size(); ++i) {
    rows.push_back(cached.step({{seq, std::span(tokens).subspan(i, 1)}}).front());
  }
  expect_parity(rows, reference(tokens));
}

TEST_P(FamilyTest, ChunksAgreeWithLibllama) {
  const auto tokens = random_tokens(random_, 150);
  const auto e = executor();
  CachedExecutor cached(*e);
  std::vector<Row> rows;
  cached.start(tokens, 13, &rows);
  expect_parity(rows, reference(tokens));
}

/// Four sequences share 45, 48, 60 and 64 tokens of a fifth: parts of blocks, whole blocks, more than windows hold.
TEST_P(FamilyTest, SequencesOfOneTreeAgreeWithLibllama) {
  const auto first = random_tokens(random_, 70);
  const auto e = executor();
  CachedExecutor cached(*e);
  cached.cache().finish(cached.start(first));
  std::vector<std::vector<Token>> texts;
  std::vector<kv::SeqId> sequences;
  std::vector<std::vector<Row>> rows;
  for (const std::size_t shared : {45, 48, 60, 64}) {
    std::vector<Token> text(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(shared));
    for (const Token t : random_tokens(random_, 7 + kDecodeSteps)) text.push_back(t);
    sequences.push_back(cached.start(std::span(text).first(shared + 7), 256, &rows.emplace_back()));
    EXPECT_EQ(rows.back().size(), 7U) << "the prefix of " << shared << " was not shared";
    texts.push_back(std::move(text));
  }
  for (std::size_t step = 0; step < kDecodeSteps; ++step) {
    std::vector<CachedExecutor::Part> parts;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      parts.push_back({sequences[i], std::span(texts[i]).subspan(texts[i].size() - kDecodeSteps + step, 1)});
    }
    const std::vector<Row> out = cached.step(parts);
    for (std::size_t i = 0; i < texts.size(); ++i) rows[i].push_back(out[i]);
  }
  for (std::size_t i = 0; i < texts.size(); ++i) expect_parity(rows[i], reference(texts[i], 7 + kDecodeSteps));
}

/// Packed matrices have nodes of their own for norms, gates and residuals.
TEST(PackedTest, LayerKindsAgreeWithLibllamaOnQuantisedFiles) {
  constexpr int kQ8_0 = 8, kMxfp4 = 39;
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, 60);
  for (FamilyModel& family : test::family_models()) {
    const std::array<std::string, 10> drawn = {"gemma4",         "gemma4_shared", "granite_swa", "spark2_5",
                                               "muse_glimmer",   "qwen2moe",      "gpt_oss",     "llama4_experts",
                                               "gemma4_experts", "mixtral"};
    if (!std::ranges::count(drawn, family.name)) continue;
    family.model.matrix_type = kQ8_0;
    if (family.name == "gpt_oss") {
      for (const char* name : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"})
        family.model.other_types[name] = kMxfp4;
    }
    const std::string path = test::tiny_path(family.name + "_q8", family.model);
    const auto e = test::load(path, "tree", 8);
    CachedExecutor cached(*e);
    std::vector<Row> rows;
    cached.start(tokens, 25, &rows);
    test::expect_no_worse_than_libllama(family.name, path, tokens, rows);
  }
}

/// Where a layer's experts are of a type that we don't pack, all three products are ggml's.
TEST(PackedTest, ExpertsThatArePackedInPartAgreeWithLibllama) {
  constexpr int kF16 = 1, kQ8_0 = 8;
  auto models = test::family_models();
  test::TinyModel model = std::ranges::find(models, "mixtral", &FamilyModel::name)->model;
  model.matrix_type = kQ8_0;
  model.other_types = {{"ffn_up_exps", kF16}};
  const std::string path = test::tiny_path("mixtral_in_part", model);
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, 40);
  const auto e = test::load(path, "tree", 8);
  CachedExecutor cached(*e);
  std::vector<Row> rows;
  cached.start(tokens, 25, &rows);
  test::expect_no_worse_than_libllama("mixtral in part", path, tokens, rows);
}

/// Where libllama's chunks end and its temperatures rise, whatever the file says.
TEST(Llama4Test, RowsBeyondTheFirstChunkAgreeWithLibllama) {
  constexpr int kTokens = 8260, kCompared = 120;
  auto models = test::family_models();
  test::TinyModel model = std::ranges::find(models, "llama4_experts", &FamilyModel::name)->model;
  model.context = 16384;
  const std::string path = test::tiny_path("llama4_long", model);
  std::mt19937 random(13);
  const auto tokens = random_tokens(random, kTokens);
  const auto e = test::load(path, "tree", 32, 1, "f16", std::size_t{16} << 20);
  CachedExecutor cached(*e);
  std::vector<Row> rows;
  cached.start(tokens, 256, &rows);
  const auto expected =
      test::Libllama(path, false, 1, false, test::Libllama::Pooling::kNone, model.context).feed(tokens, kCompared);
  expect_parity(std::span(rows).last(kCompared), expected);
}

TEST(SlidingLayersTest, BlocksThatLeftTheWindowAreInUseNoMore) {
  constexpr int kBlockSize = 8, kTokens = 150;
  auto models = test::family_models();
  const test::TinyModel model = std::ranges::find(models, "gemma3", &FamilyModel::name)->model;
  const int window = std::get<int>(model.settings.at("attention.sliding_window"));
  const auto e = test::load(test::tiny_path("gemma3", model), "tree", kBlockSize);
  CachedExecutor cached(*e);
  std::mt19937 random(5);
  const auto tokens = random_tokens(random, kTokens);
  const kv::SeqId seq = cached.start(tokens, 13);
  const int all = (kTokens + kBlockSize - 1) / kBlockSize, left = (kTokens - window) / kBlockSize;
  ASSERT_EQ(e->info().groups.size(), 7U) << "one layer sees all: a page holds one, and six slide";
  EXPECT_EQ(cached.cache().stats().in_use, all + 6 * (all - left));
  EXPECT_EQ(cached.cache().stats().cached, 6 * left);
  cached.cache().finish(seq);
  const kv::SeqId again = cached.start(tokens);  // matched up to its last token, which is more than the window holds
  EXPECT_EQ(cached.cache().lengths(again).cached_len, kTokens - 1);
}

/// Pages of several groups, whose last one is not full, in the formats that libllama doesn't have.
TEST(SlidingLayersTest, TreeAndDenseAgreeInEveryFormat) {
  auto models = test::family_models();
  test::TinyModel model = std::ranges::find(models, "gemma3", &FamilyModel::name)->model;
  model.n_layer = 13;  // two see all, eleven slide: six pages
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, 120);
  // A last bit of a key may change its code: that is a 254th of the largest value of a head in int8.
  for (const auto& [format, tolerance] : {std::pair{"f16", 2e-3}, {"int8", 5e-3}, {"turbo4", 2e-2}}) {
    std::vector<std::vector<Row>> rows;
    for (const char* attention : {"dense", "tree"}) {
      const auto e = test::load(test::tiny_path("gemma3_13", model), attention, 8, 1, format);
      ASSERT_EQ(e->info().groups.size(), 7U);
      CachedExecutor cached(*e);
      cached.cache().finish(cached.start(std::span(tokens).first(77)));
      const kv::SeqId seq = cached.start(std::span(tokens).first(85), 13, &rows.emplace_back());
      ASSERT_EQ(rows.back().size(), 8U) << "a fork in mid-block, in every group";
      for (std::size_t i = 85; i < tokens.size(); ++i) {
        rows.back().push_back(cached.step({{seq, std::span(tokens).subspan(i, 1)}}).front());
      }
    }
    for (std::size_t i = 0; i < rows[0].size(); ++i) {
      EXPECT_LT(test::relative_rms(rows[1][i], rows[0][i]), tolerance) << format << ", row " << i;
    }
  }
}

/// A budget holds as many tokens as the bytes of their keys and values say, whatever slides.
TEST(SlidingLayersTest, APoolHoldsAsManyTokensAsTheirBytesSay) {
  constexpr int kBlockSize = 8;
  constexpr std::int32_t kChunk = 16;
  auto models = test::family_models();
  test::TinyModel model = std::ranges::find(models, "gemma3", &FamilyModel::name)->model;
  model.n_layer = 18;  // as Gemma 3 270M: three see all, fifteen slide
  const auto e = test::load(test::tiny_path("gemma3_18", model), "tree", kBlockSize);
  const executor::ExecutorInfo& info = e->info();
  const kv::CacheConfig config{
      .block_size = kBlockSize, .num_blocks = info.num_blocks, .groups = info.groups, .max_extend = kChunk};
  std::int32_t tokens = 0;
  while (config.blocks_needed(tokens + kBlockSize, 1) < info.num_blocks) tokens += kBlockSize;

  const std::size_t layer = std::size_t{2} * 32 * 2;  // keys and values, one head, f16
  const std::size_t full = 3 * layer * static_cast<std::size_t>(tokens);
  const int window = std::get<int>(model.settings.at("attention.sliding_window"));
  const std::size_t sliding = 15 * layer * static_cast<std::size_t>(window + kChunk + kBlockSize);
  const std::size_t growth = 2 * 18 * layer * kBlockSize;  // a block to grow and one to fork
  EXPECT_NEAR(static_cast<double>(full + sliding + growth), static_cast<double>(std::size_t{4} << 20), 0.01 * (1 << 22))
      << tokens << " tokens";
}

/// Libllama ignores Phi-3's window. In a model of one layer a token's logits are those of the tokens in its window
/// alone, and where these begin doesn't matter: positions are relative.
TEST(Phi3Test, AWindowInAllLayersHidesWhatLiesBefore) {
  constexpr int kWindow = 9;
  auto models = test::family_models();
  test::TinyModel model = std::ranges::find(models, "phi3", &FamilyModel::name)->model;
  model.n_layer = 1;
  model.settings["attention.sliding_window"] = kWindow;
  const std::string path = test::tiny_path("phi3_window", model);
  std::mt19937 random(11);
  const auto tokens = random_tokens(random, 60);
  test::Libllama reference(path, false, 1);
  for (const char* attention : {"dense", "gather", "tree"}) {
    const auto e = test::load(path, attention, 8);
    ASSERT_EQ(e->info().groups.size(), 1U);
    EXPECT_EQ(e->info().groups[0].kind, kv::GroupKind::kFull) << "the tree stands on a group that keeps everything";
    CachedExecutor cached(*e);
    std::vector<Row> rows;
    cached.start(tokens, 25, &rows);
    ASSERT_EQ(rows.size(), tokens.size());
    for (const std::size_t last : {3, 8, 9, 24, 25, 40, 59}) {
      const std::size_t first = last + 1 < kWindow ? 0 : last + 1 - kWindow;
      reference.clear();
      const auto expected = reference.feed(std::span(tokens).subspan(first, last + 1 - first), 1);
      EXPECT_LT(test::relative_rms(rows[last], expected.front()), 3e-3) << attention << ", token " << last;
    }
  }
}

}  // namespace
}  // namespace coppice
