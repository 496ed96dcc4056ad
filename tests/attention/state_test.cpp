// The algebra of partial states against softmax in double precision.
#include "attention/plan/state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "support/attention_cases.h"

namespace coppice::attention {
namespace {

constexpr std::size_t kDim = 5;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct State {
  float max = 123.0F, sum = 123.0F;
  std::vector<float> acc = std::vector<float>(kDim, 123.0F);

  State() { empty(ref()); }
  StateRef ref() { return {max, sum, acc}; }
  ConstStateRef view() const { return {max, sum, acc}; }
  std::vector<float> normalised() const {
    std::vector<float> out(kDim, 123.0F);
    normalise(view(), out);
    return out;
  }
};

struct Key {
  float score = 0.0F;
  std::vector<float> value;
};

State of(const Key& key) {
  State s;
  s.max = key.score;
  s.sum = key.score == -kInfinity ? 0.0F : 1.0F;
  for (std::size_t d = 0; d < kDim; ++d) s.acc[d] = s.sum * key.value[d];
  return s;
}

State joined(State a, const State& b) {
  merge(a.ref(), b.view());
  return a;
}

std::vector<float> softmax(const std::vector<Key>& keys) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
  std::vector<double> acc(kDim, 0.0);
  for (const Key& k : keys) max = std::max(max, static_cast<double>(k.score));
  for (const Key& k : keys) {
    const double w = std::isinf(max) ? 0.0 : std::exp(static_cast<double>(k.score) - max);
    sum += w;
    for (std::size_t d = 0; d < kDim; ++d) acc[d] += w * static_cast<double>(k.value[d]);
  }
  std::vector<float> out;
  for (const double a : acc) out.push_back(sum > 0.0 ? static_cast<float>(a / sum) : 0.0F);
  return out;
}

void expect_near(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t d = 0; d < a.size(); ++d) ASSERT_NEAR(a[d], b[d], 2e-5);
}

/// Scores of any size, -inf among them.
std::vector<Key> random_keys(std::mt19937_64& random) {
  const float width = std::array{1.0F, 10.0F, 300.0F, 1e4F}[random() % 4];
  std::normal_distribution<float> normal;
  std::vector<Key> keys(1 + random() % 40);
  for (Key& k : keys) {
    k.score = random() % 10 == 0 ? -kInfinity : width * normal(random);
    for (std::size_t d = 0; d < kDim; ++d) k.value.push_back(normal(random));
  }
  return keys;
}

TEST(StateTest, EmptyIsNeutral) {
  const State none;
  EXPECT_TRUE(is_empty(none.view()));
  EXPECT_EQ(none.max, -kInfinity);
  EXPECT_EQ(none.sum, 0.0F);
  EXPECT_EQ(none.acc, std::vector<float>(kDim, 0.0F));
  EXPECT_EQ(none.normalised(), std::vector<float>(kDim, 0.0F));
  EXPECT_TRUE(is_empty(joined(none, none).view()));
  EXPECT_FALSE(std::isnan(joined(none, none).max));

  const State some = of({-3.0F, {1, 2, 3, 4, 5}});
  EXPECT_FALSE(is_empty(some.view()));
  for (const State& s : {joined(some, none), joined(none, some)}) {
    EXPECT_EQ(s.max, some.max);
    EXPECT_EQ(s.sum, some.sum);
    EXPECT_EQ(s.acc, some.acc);
  }
}

TEST(StateTest, MaskedKeysWeighNothing) {
  const State masked = of({-kInfinity, {1, 2, 3, 4, 5}});
  EXPECT_TRUE(is_empty(masked.view()));
  const State some = of({-1e30F, {1, 2, 3, 4, 5}});
  EXPECT_EQ(joined(some, masked).normalised(), some.normalised());
  EXPECT_EQ(joined(masked, some).normalised(), some.normalised());
}

TEST(StateTest, LargeScoresNeitherOverflowNorVanish) {
  const State a = of({3e38F, {1, 1, 1, 1, 1}}), b = of({-3e38F, {2, 2, 2, 2, 2}});
  EXPECT_EQ(joined(a, b).normalised(), std::vector<float>(kDim, 1.0F));
  EXPECT_EQ(joined(b, a).normalised(), std::vector<float>(kDim, 1.0F));
  EXPECT_EQ(joined(a, a).normalised(), std::vector<float>(kDim, 1.0F));
}

TEST(StateTest, AnyOrderAndAnyBracketsGiveTheSoftmax) {
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 3000; ++i) {
    const std::vector<Key> keys = random_keys(random);
    const std::vector<float> expected = softmax(keys);
    std::vector<State> parts;
    for (const Key& k : keys) parts.push_back(of(k));
    // Two random partners become one until one is left: any tree of merges.
    while (parts.size() > 1) {
      std::swap(parts[random() % parts.size()], parts.back());
      const State last = std::move(parts.back());
      parts.pop_back();
      State& other = parts[random() % parts.size()];
      other = random() % 2 == 0 ? joined(other, last) : joined(last, other);
    }
    expect_near(parts[0].normalised(), expected);
  }
}

TEST(StateTest, MergeIsAssociativeAndCommutative) {
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 3000; ++i) {
    std::vector<State> s(3);
    for (State& part : s) {
      for (const Key& k : random_keys(random)) merge(part.ref(), of(k).view());
    }
    const State left = joined(joined(s[0], s[1]), s[2]), right = joined(s[0], joined(s[1], s[2]));
    EXPECT_EQ(left.max, right.max);
    EXPECT_NEAR(left.sum, right.sum, 1e-5F * left.sum);
    expect_near(left.normalised(), right.normalised());
    expect_near(joined(s[0], s[1]).normalised(), joined(s[1], s[0]).normalised());
  }
}

}  // namespace
}  // namespace coppice::attention
