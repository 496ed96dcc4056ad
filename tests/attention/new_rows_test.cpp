// New rows on every instruction set: queries and keys turned as the formula says, keys and values where their slots
// are, as the codec writes them, and nothing else.
#include "attention/cpu/new_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cpu/kv_codec.h"
#include "attention/rope.h"
#include "support/normal.h"
#include "support/simd_targets.h"

namespace coppice::attention {
namespace {

struct Case {
  KvFormat format;
  int n_head, n_kv_head, head_dim, turned_dims, n, n_workers;
  bool factors;
  bool halves = false;
};

constexpr Case kCases[] = {
    {KvFormat::kF16, 9, 3, 64, 64, 5, 2, false},       {KvFormat::kF16, 4, 4, 80, 80, 1, 3, true},
    {KvFormat::kF16, 2, 1, 24, 10, 7, 1, false},       {KvFormat::kF16, 2, 2, 6, 2, 3, 2, true},
    {KvFormat::kInt8, 8, 2, 128, 64, 4, 2, true},      {KvFormat::kTurbo4, 3, 1, 96, 96, 9, 4, false},
    {KvFormat::kF16, 9, 3, 64, 64, 5, 2, false, true}, {KvFormat::kF16, 2, 1, 24, 10, 7, 1, true, true},
    {KvFormat::kInt8, 4, 2, 96, 72, 3, 2, true, true}, {KvFormat::kF16, 4, 2, 16, 0, 3, 2, false},
    {KvFormat::kF16, 4, 0, 32, 32, 3, 2, false, true},  // queries only
};

constexpr double kBase = 10000.0, kScale = 0.5, kMagnitude = 1.25;
constexpr int kSlots = 40;

std::vector<float> random_values(std::size_t n, std::mt19937& random) {
  test::Normal normal;
  std::vector<float> values(n);
  std::ranges::generate(values, [&] { return normal(random); });
  return values;
}

class NewRowsTest : public test::EachSimdTarget {
 protected:
  std::mt19937 random_{3};

  /// Heads of rows at positions, turned in double precision.
  static void expect_turned(const Case& c, int n_head, const std::vector<float>& factors,
                            const std::vector<int>& positions, const std::vector<float>& before,
                            const std::vector<float>& after) {
    const auto dims = static_cast<std::size_t>(c.head_dim), half = static_cast<std::size_t>(c.turned_dims) / 2;
    for (std::size_t head = 0; head < before.size(); head += dims) {
      const auto row = head / (dims * static_cast<std::size_t>(n_head));
      for (std::size_t i = 0; i < half; ++i) {
        double angle = positions[row] * kScale / std::pow(kBase, 2.0 * static_cast<double>(i) / c.turned_dims);
        if (!factors.empty()) angle /= static_cast<double>(factors[i]);
        const std::size_t one = head + (c.halves ? i : 2 * i), other = head + (c.halves ? i + half : 2 * i + 1);
        const double x = kMagnitude * before[one], y = kMagnitude * before[other];
        ASSERT_NEAR(after[one], x * std::cos(angle) - y * std::sin(angle), 2e-6) << "row " << row << ", pair " << i;
        ASSERT_NEAR(after[other], x * std::sin(angle) + y * std::cos(angle), 2e-6) << "row " << row << ", pair " << i;
      }
      for (std::size_t i = head + 2 * half; i < head + dims; ++i) ASSERT_EQ(after[i], before[i]) << "row " << row;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Simd, NewRowsTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

TEST_P(NewRowsTest, TurnAndGoIntoTheirSlots) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(testing::Message() << format_name(c.format) << ", heads of " << c.head_dim << ", " << c.n << " rows");
    const auto n = static_cast<std::size_t>(c.n), dim = static_cast<std::size_t>(c.head_dim);
    const auto n_kv = static_cast<std::size_t>(c.n_kv_head);
    std::vector<float> factors;
    for (int i = 0; c.factors && i < c.turned_dims / 2; ++i) factors.push_back(1.0F + static_cast<float>(i));
    const Rope rope({.halves = c.halves,
                     .dims = c.turned_dims,
                     .base = kBase,
                     .scale = kScale,
                     .factors = factors,
                     .magnitude = kMagnitude});
    ASSERT_EQ(rope.dims(), c.turned_dims);

    std::vector<int> positions;
    std::vector<float> turns(n * rope.turn_size());
    for (std::size_t row = 0; row < n; ++row) {
      positions.push_back(row == 0 ? 100000 : static_cast<int>(random_() % 8192));
      rope.turn(positions.back(), turns.data() + row * rope.turn_size());
    }
    std::vector<kv::Slot> slots(kSlots);
    std::iota(slots.begin(), slots.end(), 0);
    std::ranges::shuffle(slots, random_);

    const auto queries = random_values(n * static_cast<std::size_t>(c.n_head) * dim, random_);
    const auto keys = random_values(n * n_kv * dim, random_), values = random_values(n * n_kv * dim, random_);
    auto turned_queries = queries, turned_keys = keys;
    const std::size_t head = head_bytes(c.format, c.head_dim), row_bytes = n_kv * head;
    std::vector<std::byte> key_pool(kSlots * row_bytes, std::byte{0xA5}), value_pool = key_pool;
    auto expected_keys = key_pool, expected_values = value_pool;
    for (int worker = 0; worker < c.n_workers; ++worker) {
      enter_rows({.format = c.format,
                  .n_head = c.n_head,
                  .n_kv_head = c.n_kv_head,
                  .head_dim = c.head_dim,
                  .n = c.n,
                  .queries = turned_queries.data(),
                  .keys = turned_keys.data(),
                  .values = values.data(),
                  .turns = turns.data(),
                  .turned_dims = c.turned_dims,
                  .halves = c.halves,
                  .slots = slots.data(),
                  .key_pool = key_pool.data(),
                  .value_pool = value_pool.data(),
                  .row_stride = row_bytes},
                 worker, c.n_workers);
    }
    expect_turned(c, c.n_head, factors, positions, queries, turned_queries);
    expect_turned(c, c.n_kv_head, factors, positions, keys, turned_keys);
    for (std::size_t row = 0; row < n; ++row) {
      for (std::size_t h = 0; h < n_kv; ++h) {
        const std::size_t from = (row * n_kv + h) * dim,
                          to = static_cast<std::size_t>(slots[row]) * row_bytes + h * head;
        encode_head(c.format, c.head_dim, turned_keys.data() + from, expected_keys.data() + to);
        encode_head(c.format, c.head_dim, values.data() + from, expected_values.data() + to);
      }
    }
    EXPECT_EQ(key_pool, expected_keys);
    EXPECT_EQ(value_pool, expected_values);
  }
}

/// By the formula of the paper: turns in the original context decide.
TEST(RopeTest, YarnScalesSlowPairsOnly) {
  constexpr int kDims = 64;
  constexpr double kFactor = 8, kOriginal = 4096;
  const Rope rope({.dims = kDims,
                   .base = kBase,
                   .scale = 1 / kFactor,
                   .yarn = Yarn{.beta_fast = 32, .beta_slow = 1, .original_context = kOriginal}});
  std::vector<float> turn(rope.turn_size());
  rope.turn(1, turn.data());
  int mixed = 0;
  for (int i = 0; i < kDims / 2; ++i) {
    const double plain = std::pow(kBase, -2.0 * i / kDims), turns = kOriginal * plain / (2 * std::acos(-1.0));
    const double sine = turn[static_cast<std::size_t>(kDims + 2 * i + 1)];
    if (turns > 32 * 1.5) {
      EXPECT_NEAR(sine, std::sin(plain), 1e-7) << i;
    } else if (turns < 1 / 1.5) {
      EXPECT_NEAR(sine, std::sin(plain / kFactor), 1e-7) << i;
    } else {
      mixed += sine < std::sin(plain) * 0.999 && sine > std::sin(plain / kFactor) * 1.001 ? 1 : 0;
    }
  }
  EXPECT_GE(mixed, 5);
}

}  // namespace
}  // namespace coppice::attention
