// The CPU kernel where numbers are at their largest or smallest: sums that must fit, weights that must not get lost,
// keys that are no numbers. On every instruction set that this machine has.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "attention/attend.h"
#include "attention/cpu/kv_codec.h"
#include "support/normal.h"
#include "support/simd_targets.h"

namespace coppice {
namespace {

using attention::kKvFormats;
using attention::KvFormat;
using test::attend;
using test::AttentionCase;
using test::distance;
using test::kTolerance;

class KernelExtremesTest : public test::EachSimdTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, KernelExtremesTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

/// Rows that stand on one prefix and add a token each: one tile of as many queries. Lone rows, few queries, are n = 1.
AttentionCase rows_on_prefix(int n, int length, int block_size) {
  std::vector<test::Path> paths = {{.length = length, .reads = false}};
  paths.resize(1 + static_cast<std::size_t>(n), {.parent = 0, .shared = length, .length = length + 1});
  return test::make_case("", paths, block_size, {}, 1);
}

TEST_P(KernelExtremesTest, ScoresOfAnySizeKeepFinite) {
  for (AttentionCase c :
       {test::named_case("8 unrelated at 400"), rows_on_prefix(17, 300, 32), rows_on_prefix(70, 300, 32)}) {
    for (const float scale : {0.0F, 1e-6F, 30.0F, 300.0F}) {
      c.heads.scale = scale;
      const auto q = test::make_queries(c, 4);
      for (const KvFormat format : kKvFormats) {
        const test::PoolData pool(c, 3, format);
        for (const float v : attend(c, pool, q, 1).out) {
          ASSERT_TRUE(std::isfinite(v)) << c.n_rows() << " rows, scale " << scale << ", " << format_name(format);
        }
      }
    }
  }
}

/// Infinite scales with codes of 0: no number. Our codec writes none.
TEST_P(KernelExtremesTest, InfiniteScalesOfKeysLeaveAnswersFinite) {
  for (const int n_rows : {1, 17, 70}) {
    AttentionCase c = rows_on_prefix(n_rows, 100, 16);
    c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = 64, .scale = 0.1F};
    const auto q = test::make_queries(c, 2);
    for (const KvFormat format : {KvFormat::kInt8, KvFormat::kTurbo4}) {
      test::PoolData pool(c, 1, format);
      std::byte* head = pool.keys.data() + static_cast<std::size_t>(c.rows()[0].table.slot(20)) * pool.view.row_bytes;
      std::fill_n(head, pool.view.row_bytes, std::byte{0});
      head[1] = std::byte{0x7C};
      for (const float x : attend(c, pool, q, 1).out) {
        ASSERT_TRUE(std::isfinite(x)) << n_rows << " rows, " << format_name(format);
      }
    }
  }
}

/// Every slot's key or value of the pool becomes that of bytes(slot).
template <class Bytes>
void fill(std::vector<std::byte>& all, std::size_t row, Bytes&& bytes) {
  for (std::size_t slot = 0; slot < all.size() / row; ++slot) {
    const auto head = bytes(slot);
    std::copy(head.begin(), head.end(), all.begin() + static_cast<std::ptrdiff_t>(slot * row));
  }
}

/// Codes and queries all at their largest: the longest sums that 32 bits must hold.
TEST_P(KernelExtremesTest, CodesAtTheirLargestDontOverflow) {
  for (const auto& [dim, n_rows] : std::vector<std::pair<int, int>>{
           {48, 1}, {64, 1}, {80, 1}, {256, 1}, {512, 1}, {1024, 1}, {48, 9}, {80, 9}, {512, 9}, {80, 70}}) {
    AttentionCase c = rows_on_prefix(n_rows, 127, 64);
    c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = dim, .scale = 1.0F};
    for (const KvFormat format : {KvFormat::kInt8, KvFormat::kTurbo4}) {
      test::PoolData pool(c, 1, format);
      // Every other slot's: -128, as bytes of int8 may be, or turbo4's code 7, which is 127. Scales of 2^-10.
      const std::byte code{static_cast<unsigned char>(format == KvFormat::kInt8 ? 0x80 : 0x77)};
      for (auto* all : {&pool.keys, &pool.values}) {
        fill(*all, pool.view.row_bytes, [&](std::size_t slot) {
          std::vector<std::byte> head(attention::head_bytes(format, dim), slot % 2 == 0 ? code : std::byte{0});
          head[0] = std::byte{0}, head[1] = std::byte{0x14};
          return head;
        });
      }
      std::vector<float> q(static_cast<std::size_t>(dim * n_rows));
      for (int row = 0; row < n_rows; ++row) {
        attention::decode_head(format, dim, pool.keys.data(), q.data() + std::ptrdiff_t{row} * dim);
      }
      std::vector<float> expected(q.size());
      const auto rows = c.rows();
      attend_reference(c.heads, pool.view, c.group, rows, q, expected);
      ASSERT_LT(distance(c, attend(c, pool, q, 1).out, expected), kTolerance)
          << dim << ", " << n_rows << " rows, " << format_name(format);
    }
  }
}

/// The same of f16 under many queries: heads of equal values are as long as their largest value allows, and a lone
/// large value is as large. Every other key is 0 and its value the opposite, so a sum that leaves 32 bits turns the
/// answer. 65,504 is the largest that f16 holds.
TEST_P(KernelExtremesTest, ManyQueriesOfLargestHeadsDontOverflow) {
  for (const auto& [dim, n_rows] :
       std::vector<std::pair<int, int>>{{16, 16}, {48, 16}, {64, 16}, {80, 16}, {256, 16}, {1024, 16}, {64, 40}}) {
    for (const float size : {6e-8F, 1.0F, 65504.0F}) {
      for (const bool equal : {true, false}) {
        std::vector<test::Path> paths = {{.length = 128, .reads = false}};
        paths.resize(1 + static_cast<std::size_t>(n_rows), {.parent = 0, .shared = 128, .length = 129});
        AttentionCase c = test::make_case("largest", paths, 64, {}, 1);
        c.heads = {.n_head = 2, .n_kv_head = 1, .head_dim = dim, .scale = 1.0F};
        test::PoolData pool(c, 1, KvFormat::kF16);
        std::vector<float> head(static_cast<std::size_t>(dim), equal ? size : 0.0F);
        head[static_cast<std::size_t>(dim) - 1] = size;
        const auto write = [&](std::vector<std::byte>& all, float odd) {
          fill(all, pool.view.row_bytes, [&](std::size_t slot) {
            std::vector<float> written = head;
            for (float& x : written) x *= slot % 2 == 0 ? 1.0F : odd;
            std::vector<std::byte> row(attention::head_bytes(KvFormat::kF16, dim));
            attention::encode_head(KvFormat::kF16, dim, written.data(), row.data());
            return row;
          });
        };
        write(pool.keys, 0.0F);
        write(pool.values, -1.0F);
        // The rows ask for the even slots or, by the sign, for the odd ones.
        std::vector<float> q;
        for (int i = 0; i < c.n_rows() * c.heads.n_head; ++i) {
          for (const float x : head) q.push_back(i % 2 == 0 ? x : -x);
        }
        std::vector<float> expected(q.size());
        const auto rows = c.rows();
        attend_reference(c.heads, pool.view, c.group, rows, q, expected);
        ASSERT_LT(distance(c, attend(c, pool, q, 1).out, expected), kTolerance) << dim << ", " << size << ", " << equal;
      }
    }
  }
}

/// A slot that has nearly all the weight isn't drowned by the rounding of others' values, 10,000 times as large as its
/// own.
void expect_small_values_to_count(int n_rows) {
  constexpr int kDim = 64, kTokens = 128;
  std::vector<test::Path> paths = {{.length = kTokens, .reads = false}};
  paths.resize(1 + static_cast<std::size_t>(n_rows), {.parent = 0, .shared = kTokens, .length = kTokens + 1});
  AttentionCase c = test::make_case("heavy", paths, 64, {}, 1);
  c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = kDim, .scale = 1.0F};
  std::mt19937_64 random(test::test_seed());
  test::Normal normal;
  for (const int heavy : {0, 5, 127}) {
    test::PoolData pool(c, 1, KvFormat::kF16);
    const auto rows = c.rows();
    std::vector<float> q;
    for (int i = 0; i < c.n_rows() * kDim; ++i) q.push_back(0.5F);
    for (int t = 0; t < kTokens; ++t) {
      std::vector<float> key(kDim), value(kDim);
      for (float& x : key) x = t == heavy ? 0.625F : 0.01F * normal(random);  // scores of 20, and of 0
      for (float& x : value) x = (t == heavy ? 0.01F : 100.0F) * normal(random);
      const auto at = static_cast<std::size_t>(rows[0].table.slot(t)) * pool.view.row_bytes;
      attention::encode_head(KvFormat::kF16, kDim, key.data(), pool.keys.data() + at);
      attention::encode_head(KvFormat::kF16, kDim, value.data(), pool.values.data() + at);
    }
    std::vector<float> expected(q.size());
    attend_reference(c.heads, pool.view, c.group, rows, q, expected);
    ASSERT_LT(distance(c, attend(c, pool, q, 1).out, expected), kTolerance) << heavy;
  }
}

TEST_P(KernelExtremesTest, SmallValuesOfHeavySlotsCount) {
  expect_small_values_to_count(16);
  expect_small_values_to_count(70);
}

/// Infinite keys, as others' codecs write them: whatever they weigh, they spoil nobody's answer. One infinite channel
/// scores infinity, two may score infinity minus infinity.
TEST_P(KernelExtremesTest, InfiniteKeysLeaveAnswersFinite) {
  constexpr int kDim = 64;
  for (const int n_rows : {1, 16, 70}) {
    std::vector<test::Path> paths = {{.length = 100, .reads = false}};
    paths.resize(1 + static_cast<std::size_t>(n_rows), {.parent = 0, .shared = 100, .length = 101});
    AttentionCase c = test::make_case("infinite", paths, 16, {}, 1);
    c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = kDim, .scale = 0.1F};
    std::vector<float> q = test::make_queries(c, 2);
    for (int row = 0; row < n_rows; ++row) q[static_cast<std::size_t>(row * kDim + 3)] = row % 2 == 0 ? 1.0F : -1.0F;
    for (int row = 0; row < n_rows; ++row) q[static_cast<std::size_t>(row * kDim + 5)] = row % 2 == 0 ? -1.0F : 1.0F;
    for (const std::size_t channels : {1U, 2U}) {
      for (const int position : {0, 20, 31, 47, 63, 99}) {
        test::PoolData pool(c, 1, KvFormat::kF16);
        std::vector<float> head(kDim, 1.0F);
        const auto slot = static_cast<std::size_t>(c.rows()[0].table.slot(position));
        std::byte* key = pool.keys.data() + slot * pool.view.row_bytes;
        attention::encode_head(KvFormat::kF16, kDim, head.data(), key);
        for (std::size_t i = 0; i < channels; ++i) {
          key[2 * (3 + 2 * i)] = std::byte{0}, key[2 * (3 + 2 * i) + 1] = std::byte{0x7C};
        }
        for (const float x : attend(c, pool, q, 1).out) {
          ASSERT_TRUE(std::isfinite(x)) << n_rows << " rows, " << channels << " channels of position " << position;
        }
      }
    }
  }
}

/// A value that f16 can't hold, in a slot that not all rows of a tile see.
TEST_P(KernelExtremesTest, ValuesTooLargeForF16LeaveAnswersFinite) {
  constexpr int kDim = 64;
  for (const int n_rows : {2, 16, 70}) {
    const std::vector<test::Path> paths = {{.length = 70, .n_rows = n_rows}};
    AttentionCase c = test::make_case("large values", paths, 16, {}, 1);
    c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = kDim, .scale = 0.1F};
    const auto q = test::make_queries(c, 2);
    for (const KvFormat format : kKvFormats) {
      for (const int position : {0, 40, 69}) {  // the last one is seen by the last row only
        test::PoolData pool(c, 1, format);
        const std::vector<float> value(kDim, 1e30F);
        const auto slot = static_cast<std::size_t>(c.rows()[0].table.slot(position));
        attention::encode_head(format, kDim, value.data(), pool.values.data() + slot * pool.view.row_bytes);
        for (const float x : attend(c, pool, q, 1).out) {
          ASSERT_TRUE(std::isfinite(x)) << n_rows << " rows, " << format_name(format) << ", position " << position;
        }
      }
    }
  }
}

/// A block that brings no larger score must leave the states as they are, to the last bit: a factor that is 1 but for a
/// rounding makes keys weigh more the earlier they come, by as much as there are blocks.
TEST_P(KernelExtremesTest, AThousandBlocksWeighAlike) {
  constexpr int kTokens = 8192, kDim = 64;
  for (const int n_rows : {1, 16, 70}) {  // vectors along values, across queries, and tiles of many
    std::vector<test::Path> paths = {{.length = kTokens, .reads = false}};
    paths.resize(1 + static_cast<std::size_t>(n_rows), {.parent = 0, .shared = kTokens, .length = kTokens + 1});
    AttentionCase c = test::make_case("", paths, 8, {}, 1);
    c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = kDim, .scale = 1.0F};
    const auto q = test::make_queries(c, 2);
    for (const KvFormat format : {KvFormat::kF16, KvFormat::kInt8}) {  // turbo4 rounds 1 and -1 differently
      test::PoolData pool(c, 3, format);
      const std::size_t size = pool.view.row_bytes;
      const auto write = [&](std::vector<std::byte>& to, kv::Slot slot, float value) {
        const std::vector<float> head(kDim, value);
        attention::encode_head(format, kDim, head.data(), to.data() + static_cast<std::size_t>(slot) * size);
      };
      // All keys alike. The first half's values are 1, the second half's -1, the rows' own 0.
      const auto rows = c.rows();
      for (const attention::SequenceRows& s : rows) {
        for (int t = s.first_row == 0 ? 0 : kTokens; t <= kTokens; ++t) {
          write(pool.keys, s.table.slot(t), 1.0F);
          write(pool.values, s.table.slot(t), t < kTokens / 2 ? 1.0F : t < kTokens ? -1.0F : 0.0F);
        }
      }
      for (const float x : attend(c, pool, q, 1).out) {
        ASSERT_NEAR(x, 0.0F, 2e-6) << n_rows << " rows, " << format_name(format);
      }
    }
  }
}

}  // namespace
}  // namespace coppice
