// New rows on every instruction set: queries and keys turned as the formula says, keys and values where their slots are, as
// the codec writes them, and nothing else.
#include "attention/cpu/new_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "attention/cpu/kv_codec.h"
#include "attention/cpu/rope.h"
#include "support/simd_targets.h"

namespace coppice::attention {
namespace {

struct Case {
  KvFormat format;
  int n_head, n_kv_head, head_dim, turned_dims, n, n_workers;
  bool factors;
};

constexpr Case kCases[] = {
    {KvFormat::kF16, 9, 3, 64, 64, 5, 2, false},  {KvFormat::kF16, 4, 4, 80, 80, 1, 3, true},
    {KvFormat::kF16, 2, 1, 24, 10, 7, 1, false},  {KvFormat::kF16, 2, 2, 6, 2, 3, 2, true},
    {KvFormat::kInt8, 8, 2, 128, 64, 4, 2, true}, {KvFormat::kTurbo4, 3, 1, 96, 96, 9, 4, false},
};

constexpr double kBase = 10000.0, kScale = 0.5;
constexpr int kSlots = 40;

std::vector<float> random_values(std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
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
    for (std::size_t i = 0; i < before.size(); i += 2) {
      const auto dim = static_cast<int>(i) % c.head_dim;
      const auto row = i / static_cast<std::size_t>(c.head_dim * n_head);
      double angle = 0.0;
      if (dim < c.turned_dims) {
        angle = positions[row] * kScale / std::pow(kBase, static_cast<double>(dim) / c.turned_dims);
        if (!factors.empty()) angle /= static_cast<double>(factors[static_cast<std::size_t>(dim / 2)]);
      }
      const double even = before[i], odd = before[i + 1];
      ASSERT_NEAR(after[i], even * std::cos(angle) - odd * std::sin(angle), 1e-6) << "row " << row << ", dim " << dim;
      ASSERT_NEAR(after[i + 1], even * std::sin(angle) + odd * std::cos(angle), 1e-6) << "row " << row;
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
    const Rope rope(c.turned_dims, kBase, kScale, factors);
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
                  .slots = slots.data(),
                  .key_pool = key_pool.data(),
                  .value_pool = value_pool.data(),
                  .row_bytes = row_bytes},
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

}  // namespace
}  // namespace coppice::attention
