// The scalar reference itself: by hand, and bit by bit.
#include "attention/reference.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/attention_cases.h"

namespace coppice::attention {
namespace {

std::uint16_t half(float x) {
  return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}

PoolView view_of(const std::vector<std::uint16_t>& keys, const std::vector<std::uint16_t>& values, int block_size,
                 int row) {
  return {.block_size = block_size,
          .row_bytes = 2 * static_cast<std::size_t>(row),
          .block_stride = 2 * static_cast<std::size_t>(row * block_size),
          .keys = reinterpret_cast<const std::byte*>(keys.data()),
          .values = reinterpret_cast<const std::byte*>(values.data())};
}

TEST(ReferenceTest, ReadsEveryHalfExactly) {
  constexpr int kDim = 65'536;  // one key, so its value is the result; every f16 there is
  std::vector<std::uint16_t> keys(2 * kDim, 0), values(2 * kDim, 0);
  for (int i = 0; i < kDim; ++i) values[static_cast<std::size_t>(kDim + i)] = static_cast<std::uint16_t>(i);
  const std::vector<kv::BlockId> table = {1};
  const std::vector<SequenceRows> rows = {{0, 1, 0, {table, 1}}};
  const std::vector<float> q(kDim, 0.0F);
  std::vector<float> out(kDim, -1.0F);
  attend_reference({.n_head = 1, .n_kv_head = 1, .head_dim = kDim}, view_of(keys, values, 1, kDim), {}, rows, q, out);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(static_cast<std::uint16_t>(i)));
    ASSERT_TRUE(std::isnan(expected) ? std::isnan(out[i]) : out[i] == expected) << i;
  }
}

/// Two blocks of two slots, two key heads of one dimension, four query heads; the row at position 2 sees keys 0, 1, 2.
TEST(ReferenceTest, ByHand) {
  const std::uint16_t nan = 0x7e00, ln2 = half(0.6931472F);
  const std::vector<std::uint16_t> keys = {nan, nan, nan, nan, 0, 0, nan, nan, 0, half(1), ln2, half(1)};
  const std::vector<std::uint16_t> values = {nan, nan, nan,     nan,     half(4),  half(12),
                                             nan, nan, half(8), half(6), half(16), half(3)};
  const std::vector<kv::BlockId> table = {2, 1};  // positions 0, 1: slots 4, 5; position 2: slot 2
  const std::vector<SequenceRows> rows = {{0, 1, 2, {table, 2}}};
  const std::vector<float> q = {0.0F, 2.0F, 0.0F, 100.0F};
  const HeadShape heads{.n_head = 4, .n_kv_head = 2, .head_dim = 1, .scale = 0.5F};
  std::vector<float> out(4);
  attend_reference(heads, view_of(keys, values, 2, 2), {}, rows, q, out);
  // Head 0: all alike. Head 1: position 1 weighs twice. Heads 2 and 3 read the second key head.
  EXPECT_FLOAT_EQ(out[0], (8.0F + 16.0F + 4.0F) / 3.0F);
  EXPECT_NEAR(out[1], (8.0F + 2.0F * 16.0F + 4.0F) / 4.0F, 2e-3);
  EXPECT_FLOAT_EQ(out[2], (6.0F + 3.0F + 12.0F) / 3.0F);
  EXPECT_FLOAT_EQ(out[3], 4.5F);

  attend_reference(heads, view_of(keys, values, 2, 2), {.kind = kv::GroupKind::kSliding, .window = 2}, rows, q, out);
  EXPECT_FLOAT_EQ(out[0], (16.0F + 4.0F) / 2.0F);
  EXPECT_FLOAT_EQ(out[2], (3.0F + 12.0F) / 2.0F);

  const std::vector<float> sinks = {0.0F, 0.0F, 0.6931472F,
                                    1000.0F};  // of head 0 it weighs as much as a key, of head 2 twice
  attend_reference(heads, view_of(keys, values, 2, 2), {}, rows, q, out, sinks);
  EXPECT_FLOAT_EQ(out[0], (8.0F + 16.0F + 4.0F) / 4.0F);
  EXPECT_FLOAT_EQ(out[2], (6.0F + 3.0F + 12.0F) / 5.0F);
  EXPECT_FLOAT_EQ(out[3], 0.0F);
}

}  // namespace
}  // namespace coppice::attention
