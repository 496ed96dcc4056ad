// Every family in every KV format, on tiny random models with f32 weights, through the real cache: two sequences fork a
// third in the middle of a block, behind windows, in chunks, and decode together. Libllama, which has f16 only, says
// how far the format is off; the two backends that read all formats, by different code, must agree much better than
// that.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "executor/expect_parity.h"
#include "executor/tiny.h"
#include "support/cached_executor.h"
#include "support/family_models.h"
#include "support/libllama.h"

namespace coppice {
namespace {

using kv::Token;
using test::CachedExecutor;
using test::FamilyModel;
using test::random_tokens;
using test::Row;

/// Mean relative RMS of logits, at most; random models amplify what rounding costs. A wrong part is off by about 1.
struct Format {
  const char* name;
  double from_libllama;     ///< what the format's rounding costs
  double between_backends;  ///< a last bit of a key may change its code
};
constexpr Format kFormats[] = {
    {"f16", 2e-3 * test::kLibllamasRounding, 2e-3}, {"int8", 0.06, 0.015}, {"turbo4", 0.7, 0.15}};

constexpr std::size_t kShared[] = {45, 61}, kOwn = 12, kSteps = 6;

double mean_distance(std::span<const Row> rows, std::span<const Row> expected) {
  EXPECT_EQ(rows.size(), expected.size());
  double sum = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) sum += test::relative_rms(rows[i], expected[i]);
  return sum / static_cast<double>(rows.size());
}

class FamilyFormatTest : public testing::TestWithParam<std::tuple<FamilyModel, Format>> {
 protected:
  FamilyFormatTest() {
    std::mt19937 random(7);
    first_ = random_tokens(random, 70);
    for (const std::size_t shared : kShared) {
      auto& text = texts_.emplace_back(first_.begin(), first_.begin() + static_cast<std::ptrdiff_t>(shared));
      for (const Token t : random_tokens(random, kOwn + kSteps)) text.push_back(t);
    }
  }

  /// Logits of all tokens behind the shared ones, text by text.
  std::vector<Row> run(const char* attention) const {
    const auto& [family, format] = GetParam();
    const auto e = test::load(test::tiny_path(family.name, family.model), attention, 8, 1, format.name);
    CachedExecutor cached(*e);
    cached.cache().finish(cached.start(first_));
    std::vector<kv::SeqId> sequences;
    std::vector<std::vector<Row>> rows(texts_.size());
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      sequences.push_back(cached.start(std::span(texts_[i]).first(kShared[i] + kOwn), 5, &rows[i]));
      EXPECT_EQ(rows[i].size(), kOwn) << "the prefix was not shared";
    }
    for (std::size_t step = 0; step < kSteps; ++step) {
      std::vector<CachedExecutor::Part> parts;
      for (std::size_t i = 0; i < texts_.size(); ++i)
        parts.push_back({sequences[i], std::span(texts_[i]).last(kSteps - step).first(1)});
      const std::vector<Row> out = cached.step(parts);
      for (std::size_t i = 0; i < texts_.size(); ++i) rows[i].push_back(out[i]);
    }
    std::vector<Row> all;
    for (auto& of_text : rows) all.insert(all.end(), of_text.begin(), of_text.end());
    return all;
  }

  std::vector<Row> reference() const {
    const FamilyModel& family = std::get<0>(GetParam());
    test::Libllama l(test::tiny_path(family.name, family.model), false, 1);
    std::vector<Row> all;
    for (const auto& text : texts_) {
      l.clear();
      for (Row& row : l.feed(text, kOwn + kSteps)) all.push_back(std::move(row));
    }
    return all;
  }

 private:
  std::vector<Token> first_;
  std::vector<std::vector<Token>> texts_;
};

INSTANTIATE_TEST_SUITE_P(Families, FamilyFormatTest,
                         testing::Combine(testing::ValuesIn(test::family_models()), testing::ValuesIn(kFormats)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name;
                         });

TEST_P(FamilyFormatTest, ForksAndDecodesAreRightInTreeAndDense) {
  const Format& format = std::get<1>(GetParam());
  const auto tree = run("tree"), dense = run("dense");
  const double away = mean_distance(tree, reference()), apart = mean_distance(tree, dense);
  RecordProperty("from_libllama", fmt::format("{:.2e}", away));
  RecordProperty("between_backends", fmt::format("{:.2e}", apart));
  EXPECT_LT(away, format.from_libllama);
  EXPECT_LT(apart, format.between_backends);
}

}  // namespace
}  // namespace coppice
