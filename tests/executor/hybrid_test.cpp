// Families with recurrent layers, on tiny random models with f32 weights: prompts in one go and in chunks, decodes, and
// sequences that part give the logits of libllama. States lie in shuffled pages of the pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "executor/exact_logits.h"
#include "executor/expect_parity.h"
#include "executor/tiny.h"
#include "support/family_models.h"
#include "support/libllama.h"

namespace coppice {
namespace {

using kv::Token;
using test::ExecutorRig;
using test::expect_parity;
using test::FamilyModel;
using test::random_tokens;
using test::RigPart;
using test::RigSequence;
using test::Row;
using test::Want;

constexpr int kDecodeSteps = 24;
constexpr std::uint32_t kShuffle = 20240229;

void append(std::vector<Row>& rows, std::vector<Row> more) {
  for (Row& row : more) rows.push_back(std::move(row));
}

class HybridTest : public testing::TestWithParam<std::tuple<FamilyModel, const char*>> {
 protected:
  const FamilyModel& family() const { return std::get<0>(GetParam()); }
  std::string path() const { return test::tiny_path(family().name, family().model); }
  std::unique_ptr<executor::Executor> executor(int n_threads = 1) const {
    return test::load(path(), std::get<1>(GetParam()), 8, n_threads, "f16", std::size_t{16} << 20);
  }
  /// Libllama's logits of all tokens, or of the last n.
  std::vector<Row> reference(std::span<const Token> tokens, std::size_t n_last = 0) const {
    return test::Libllama(path(), false, 1).feed(tokens, static_cast<int>(n_last > 0 ? n_last : tokens.size()));
  }

  std::mt19937 random_{7};
};

INSTANTIATE_TEST_SUITE_P(Families, HybridTest,
                         testing::Combine(testing::ValuesIn(test::hybrid_models()),
                                          testing::Values("dense", "gather", "tree")),
                         [](const auto& info) { return std::get<0>(info.param).name + "_" + std::get<1>(info.param); });

TEST_P(HybridTest, WholePromptAndDecodesAgreeWithLibllama) {
  const auto tokens = random_tokens(random_, 200 + kDecodeSteps);
  const auto e = executor();
  ExecutorRig rig(*e, kShuffle);
  RigSequence s;
  std::vector<Row> rows = rig.feed(s, std::span(tokens).first(200), 200, Want::kAll);
  append(rows, rig.feed(s, std::span(tokens).subspan(200), 1, Want::kAll));
  expect_parity(rows, reference(tokens));
}

/// Steps of one row, of few and of many, in any order; two workers.
TEST_P(HybridTest, ChunksAgreeWithLibllama) {
  const auto tokens = random_tokens(random_, 230);
  const auto e = executor(2);
  ExecutorRig rig(*e, kShuffle);
  RigSequence s;
  std::vector<Row> rows;
  std::size_t done = 0;
  for (const std::size_t n : {3, 1, 1, 64, 2, 65, 1, 15, 16, 17, 45}) {
    append(rows, rig.feed(s, std::span(tokens).subspan(done, n), static_cast<int>(n), Want::kAll));
    done += n;
  }
  ASSERT_EQ(done, tokens.size());
  expect_parity(rows, reference(tokens));
}

/// Steps that want no logits leave the same state: the last layer's is written, too.
TEST_P(HybridTest, StepsWithoutLogitsWriteAllStates) {
  const auto tokens = random_tokens(random_, 80);
  const auto e = executor();
  ExecutorRig rig(*e, kShuffle);
  RigSequence s;
  rig.feed(s, std::span(tokens).first(70), 35, Want::kNone);
  expect_parity(rig.feed(s, std::span(tokens).subspan(70), 10, Want::kAll), reference(tokens, 10));
}

/// Three sequences go on from one state at 45 tokens and decode together; a fourth begins in the same step, a fifth
/// goes on from 70.
TEST_P(HybridTest, SequencesThatPartAgreeWithLibllama) {
  const auto first = random_tokens(random_, 70);
  const auto e = executor();
  ExecutorRig rig(*e, kShuffle);
  RigSequence root;
  rig.feed(root, std::span(first).first(45), 45, Want::kNone);
  rig.feed(root, std::span(first).subspan(45), 25, Want::kNone);
  std::vector<std::vector<Token>> texts;
  std::vector<RigSequence> sequences;
  for (const int shared : {45, 45, 45, 0, 70}) {
    std::vector<Token> text(first.begin(), first.begin() + shared);
    for (const Token t : random_tokens(random_, 7 + kDecodeSteps)) text.push_back(t);
    texts.push_back(std::move(text));
    sequences.push_back(shared > 0 ? rig.fork(root, shared) : RigSequence());
  }
  std::vector<std::vector<Row>> rows(texts.size());
  const auto step = [&](int n) {  // of each sequence
    std::vector<RigPart> parts;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto at = static_cast<std::size_t>(sequences[i].len);
      parts.push_back({&sequences[i], std::span(texts[i]).subspan(at, static_cast<std::size_t>(n)), Want::kAll});
    }
    const std::vector<Row> out = rig.step(parts);
    for (std::size_t i = 0; i < out.size(); ++i) rows[i / static_cast<std::size_t>(n)].push_back(out[i]);
  };
  step(7);
  for (int i = 0; i < kDecodeSteps; ++i) step(1);
  for (std::size_t i = 0; i < texts.size(); ++i) expect_parity(rows[i], reference(texts[i], 7 + kDecodeSteps));
}

/// Packed matrices have nodes of their own: a mixer's are multiplied together.
TEST(PackedHybridTest, QuantisedFilesAgreeWithLibllama) {
  constexpr int kQ8_0 = 8;
  std::mt19937 random(3);
  const auto tokens = random_tokens(random, 60);
  for (FamilyModel& family : test::hybrid_models()) {
    if (family.name == "lfm2_window" || family.name == "qwen35_last") continue;
    family.model.matrix_type = kQ8_0;
    const std::string path = test::tiny_path(family.name + "_q8", family.model);
    const auto e = test::load(path, "tree", 8);
    ExecutorRig rig(*e, kShuffle);
    RigSequence s;
    const std::vector<Row> rows = rig.feed(s, tokens, 25, Want::kAll);
    test::expect_no_worse_than_libllama(family.name, path, tokens, rows);
  }
}

}  // namespace
}  // namespace coppice
