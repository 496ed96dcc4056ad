// merge_row() alone: partial states of any split of the keys, in any order, against softmax in double precision, on
// every instruction set that this machine has. COPPICE_SEED=n replays a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cpu/tile_kernel.h"
#include "support/attention_cases.h"
#include "support/normal.h"
#include "support/simd_targets.h"

namespace coppice {
namespace {

using attention::HeadShape;
using attention::KvFormat;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

HeadShape shape(int n_head, int head_dim) {
  return {.n_head = n_head, .n_kv_head = 1, .head_dim = head_dim};
}

/// One key as one query head sees it; a score of -inf is a masked key's.
struct Key {
  float score = 0.0F;
  std::vector<float> value;  ///< [head_dim]
};

Key alike(const HeadShape& heads, float score, float value) {
  return {score, std::vector<float>(static_cast<std::size_t>(heads.head_dim), value)};
}

/// Softmax over all keys, and the sink unless it is -inf, by its definition; zeros if none weighs anything.
std::vector<double> softmax(const HeadShape& heads, std::span<const Key> keys, float sink) {
  double max = double{sink}, sum = 0.0;
  std::vector<double> out(static_cast<std::size_t>(heads.head_dim), 0.0);
  for (const Key& k : keys) max = std::max(max, double{k.score});
  if (sink != -kInfinity) sum = std::exp(double{sink} - max);
  for (const Key& k : keys) {
    const double w = k.score == -kInfinity ? 0.0 : std::exp(double{k.score} - max);
    sum += w;
    for (std::size_t d = 0; d < out.size(); ++d) out[d] += w * double{k.value[d]};
  }
  for (double& x : out) x = sum > 0.0 ? x / sum : 0.0;
  return out;
}

/// The partial states of one row, [partials][n_head][head_dim + 2]. NaN until a partial is written.
class States {
 public:
  States(const HeadShape& heads, int n_partials)
      : heads_(heads), all_(static_cast<std::size_t>(n_partials) * per_row(), NAN) {}

  /// What a tile leaves for the head if it holds these keys: none, or masked ones only, leave max -inf, sum 0, acc 0.
  void write(int partial, int head, std::span<const Key> keys) {
    float* acc = all_.data() + static_cast<std::size_t>(partial) * per_row() + static_cast<std::size_t>(head) * size();
    float max = -kInfinity;
    double sum = 0.0;
    for (const Key& k : keys) max = std::max(max, k.score);
    std::vector<double> values(size() - 2, 0.0);
    for (const Key& k : keys) {
      const double w = k.score == -kInfinity ? 0.0 : std::exp(double{k.score} - double{max});
      sum += w;
      for (std::size_t d = 0; d < values.size(); ++d) values[d] += w * double{k.value[d]};
    }
    for (const double v : values) *acc++ = static_cast<float>(v);
    acc[0] = max;
    acc[1] = static_cast<float>(sum);
  }
  /// The same keys for every head.
  void write(int partial, std::span<const Key> keys) {
    for (int h = 0; h < heads_.n_head; ++h) write(partial, h, keys);
  }
  void write(int partial, const Key& key) { write(partial, std::span(&key, 1)); }

  std::vector<float> merged(std::span<const std::int32_t> partials, const float* sinks = nullptr) const {
    constexpr float kUntouched = 123.0F;
    const auto n = static_cast<std::size_t>(heads_.n_head) * static_cast<std::size_t>(heads_.head_dim);
    std::vector<float> out(n + 1, NAN);
    out.back() = kUntouched;
    attention::merge_row(heads_, KvFormat::kF16, all_.data(), partials, out.data(), sinks);
    EXPECT_EQ(out.back(), kUntouched) << "wrote behind its end";
    out.pop_back();
    return out;
  }
  std::vector<float> merged(std::initializer_list<std::int32_t> partials) const {
    return merged(std::span(partials.begin(), partials.size()));
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(heads_.head_dim) + 2; }
  std::size_t per_row() const { return static_cast<std::size_t>(heads_.n_head) * size(); }

  HeadShape heads_;
  std::vector<float> all_;
};

std::vector<float> all_of(const HeadShape& heads, float x) {
  return std::vector<float>(static_cast<std::size_t>(heads.n_head) * static_cast<std::size_t>(heads.head_dim), x);
}

constexpr std::array kShapes = {std::pair(1, 64), std::pair(1, 80), std::pair(9, 64), std::pair(4, 80)};

class MergeTest : public test::EachSimdTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, MergeTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

TEST_P(MergeTest, EmptyStatesAreNeutral) {
  for (const auto& [n_head, dim] : kShapes) {
    const HeadShape heads = shape(n_head, dim);
    States s(heads, 4);
    s.write(0, std::span<const Key>());
    s.write(1, std::span<const Key>());
    s.write(2, alike(heads, -3.0F, 5.0F));
    s.write(3, std::vector<Key>{alike(heads, -4.0F, 1.0F), alike(heads, 2.0F, 0.7F)});
    EXPECT_EQ(s.merged({}), all_of(heads, 0.0F));
    EXPECT_EQ(s.merged({0}), all_of(heads, 0.0F));
    EXPECT_EQ(s.merged({1, 0}), all_of(heads, 0.0F));
    EXPECT_EQ(s.merged({2}), all_of(heads, 5.0F));
    for (const auto& with : {s.merged({0, 2}), s.merged({2, 1}), s.merged({1, 2, 0})}) EXPECT_EQ(with, s.merged({2}));
    EXPECT_EQ(s.merged({0, 2, 1, 3}), s.merged({2, 3}));
  }
}

TEST_P(MergeTest, MaskedKeysWeighNothing) {
  for (const auto& [n_head, dim] : kShapes) {
    const HeadShape heads = shape(n_head, dim);
    const Key hidden = alike(heads, -kInfinity, 7.0F), faint = alike(heads, -1e30F, 2.0F);
    States s(heads, 4);
    s.write(0, std::vector<Key>{hidden, hidden});
    s.write(1, faint);
    s.write(2, std::vector<Key>{hidden, faint, hidden});
    s.write(3, hidden);
    EXPECT_EQ(s.merged({0, 3}), all_of(heads, 0.0F));
    EXPECT_EQ(s.merged({0, 1}), all_of(heads, 2.0F));
    EXPECT_EQ(s.merged({2, 0}), all_of(heads, 2.0F));
    EXPECT_EQ(s.merged({3, 2, 1, 0}), all_of(heads, 2.0F));
  }
}

TEST_P(MergeTest, ASinkTakesItsShareOnce) {
  const HeadShape heads = shape(2, 64);
  States s(heads, 2);
  s.write(0, alike(heads, 1.0F, 8.0F));
  s.write(1, alike(heads, 1.0F, 4.0F));
  const std::array sinks = {1.0F, 200.0F};  // as heavy as a key; much heavier
  const std::array<std::int32_t, 2> partials = {0, 1};
  const std::vector<float> out = s.merged(partials, sinks.data());
  for (std::size_t d = 0; d < out.size(); ++d) ASSERT_NEAR(out[d], d < out.size() / 2 ? 4.0F : 0.0F, 1e-6) << d;
  EXPECT_EQ(s.merged(std::span(partials).first(0), sinks.data()), all_of(heads, 0.0F));
}

TEST_P(MergeTest, LargeScoresNeitherOverflowNorVanish) {
  for (const auto& [n_head, dim] : kShapes) {
    const HeadShape heads = shape(n_head, dim);
    States s(heads, 5);
    s.write(0, alike(heads, 3e38F, 1.0F));
    s.write(1, alike(heads, -3e38F, 2.0F));
    s.write(2, alike(heads, 3e38F, 4.0F));
    s.write(3, alike(heads, -3e38F, 6.0F));
    s.write(4, alike(heads, 0.0F, 8.0F));
    EXPECT_EQ(s.merged({0, 1}), all_of(heads, 1.0F));
    EXPECT_EQ(s.merged({1, 0}), all_of(heads, 1.0F));
    EXPECT_EQ(s.merged({4, 1}), all_of(heads, 8.0F));
    EXPECT_EQ(s.merged({0, 2}), all_of(heads, 2.5F));
    EXPECT_EQ(s.merged({1, 3}), all_of(heads, 4.0F));  // far below, but nothing is above
    EXPECT_EQ(s.merged({1, 4, 2, 3, 0}), all_of(heads, 2.5F));
  }
}

/// One head's large scores say nothing of the others'.
TEST_P(MergeTest, HeadsHaveMaximaOfTheirOwn) {
  for (const int dim : {64, 80}) {
    const HeadShape heads = shape(2, dim);
    States s(heads, 2);
    const std::array keys = {alike(heads, 1e4F, 1.0F), alike(heads, -1e4F, 2.0F)};
    s.write(0, 0, std::span(keys).first(1)), s.write(0, 1, std::span(keys).last(1));
    s.write(1, 0, std::span(keys).last(1)), s.write(1, 1, std::span<const Key>());
    const std::vector<float> out = s.merged({0, 1});
    for (std::size_t d = 0; d < out.size(); ++d) ASSERT_EQ(out[d], d < out.size() / 2 ? 1.0F : 2.0F) << d;
  }
}

TEST_P(MergeTest, AnyOrderAndAnySplitGiveTheSoftmax) {
  std::mt19937_64 random(test::test_seed());
  test::Normal normal;
  for (int i = 0; i < 300; ++i) {
    const auto& [n_head, dim] = kShapes[random() % kShapes.size()];
    const HeadShape heads = shape(n_head, dim);
    const std::size_t n_keys = 1 + random() % 40;
    const int n_partials = 1 + static_cast<int>(random() % 12);  // some get no key
    std::vector<std::int32_t> partial_of(n_keys);
    for (auto& p : partial_of) p = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(n_partials));
    States states(heads, 2 * n_partials);  // those with odd numbers are other rows': NaN
    std::vector<double> expected;
    std::vector<float> sinks;
    const bool sinking = random() % 2 == 0;
    for (int h = 0; h < n_head; ++h) {
      const float width = std::array{1.0F, 10.0F, 300.0F, 1e4F}[random() % 4];
      sinks.push_back(sinking ? width * normal(random) : -kInfinity);
      std::vector<Key> keys(n_keys);
      for (Key& k : keys) {
        k.score = random() % 10 == 0 ? -kInfinity : width * normal(random);
        for (int d = 0; d < dim; ++d) k.value.push_back(normal(random));
      }
      for (int p = 0; p < n_partials; ++p) {
        std::vector<Key> part;
        for (std::size_t k = 0; k < n_keys; ++k) {
          if (partial_of[k] == p) part.push_back(keys[k]);
        }
        states.write(2 * p, h, part);
      }
      std::ranges::copy(softmax(heads, keys, sinks.back()), std::back_inserter(expected));
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(n_partials));
    for (std::size_t p = 0; p < order.size(); ++p) order[p] = 2 * static_cast<std::int32_t>(p);
    std::ranges::shuffle(order, random);
    const std::vector<float> out = states.merged(order, sinking ? sinks.data() : nullptr);
    ASSERT_EQ(out.size(), expected.size());
    for (std::size_t d = 0; d < out.size(); ++d) ASSERT_NEAR(out[d], expected[d], 2e-6) << "case " << i << ", " << d;
  }
}

}  // namespace
}  // namespace coppice
