// The CPU kernel against the scalar reference: on every instruction set that this machine has, for decode, chunks and
// both, full attention and windows, all head sizes, groupings and KV formats. Slots that nobody may see hold NaN.
#include <gtest/gtest.h>

#include <barrier>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "attention/cpu/kv_codec.h"
#include "attention/cpu/tree_attention.h"
#include "attention/reference.h"
#include "support/attention_cases.h"
#include "support/simd_targets.h"

namespace coppice {
namespace {

using attention::HeadShape;
using attention::kKvFormats;
using attention::KvFormat;
using test::AttentionCase;

struct Attended {
  std::vector<float> out;
  std::uint64_t bytes_read = 0;
};

/// Two calls on one step, as two layers of a group make them; the second one's result.
Attended attend(const AttentionCase& c, const test::PoolData& pool, std::span<const float> q, int n_workers) {
  attention::SharePlanner planner(c.group);
  attention::TreeAttention kernel(c.heads, c.block_size, n_workers);
  attention::TreeStep step;
  const auto rows = c.rows();
  step.plan = &planner.plan(rows);
  make_schedule(*step.plan, n_workers, kernel.cost_model(), step.schedule);
  kernel.prepare(step.schedule);
  Attended a;
  a.out.assign(q.size(), NAN);
  std::atomic<std::int32_t> next_job = 0;
  std::barrier node(n_workers);
  const auto work = [&](int worker) {
    for (int layer = 0; layer < 2; ++layer) {
      kernel.partials(step, {pool.view, q.data()}, next_job, worker);
      node.arrive_and_wait();
      if (worker == 0) next_job = 0;
      kernel.merge(step, pool.view.format, a.out.data(), c.n_rows(), worker, n_workers);
      node.arrive_and_wait();
    }
  };
  std::vector<std::jthread> workers;
  for (int i = 1; i < n_workers; ++i) workers.emplace_back(work, i);
  work(0);
  workers.clear();
  a.bytes_read = kernel.bytes_read() / 2;
  return a;
}

/// Largest difference, relative to the largest value of the row and head.
double distance(const AttentionCase& c, std::span<const float> a, std::span<const float> b) {
  double worst = 0;
  const auto dim = static_cast<std::size_t>(c.heads.head_dim);
  for (std::size_t i = 0; i < a.size(); i += dim) {
    double size = 1e-3, away = 0;
    for (std::size_t j = i; j < i + dim; ++j) {
      size = std::max(size, std::abs(double{b[j]}));
      const double d = std::abs(double{a[j]} - double{b[j]});
      away = std::isnan(d) ? 1e9 : std::max(away, d);
    }
    worst = std::max(worst, away / size);
  }
  return worst;
}

/// Many queries, and few on codes, meet keys and values as 16-bit numbers. That is seen most where values all but cancel
/// out, as random ones do; a slot too many or too few among 250 would be 20 times as much.
constexpr double kTolerance = 3e-3;

void expect_reference(const AttentionCase& c, std::uint64_t seed, int n_workers, KvFormat format) {
  const test::PoolData pool(c, seed, format);
  const auto q = test::make_queries(c, seed + 1);
  std::vector<float> expected(q.size());
  const auto rows = c.rows();
  attend_reference(c.heads, pool.view, c.group, rows, q, expected);
  const Attended a = attend(c, pool, q, n_workers);
  ASSERT_LT(distance(c, a.out, expected), kTolerance)
      << c.name << ", " << n_workers << " workers, block " << c.block_size << ", heads " << c.heads.n_head << "/"
      << c.heads.n_kv_head << " of " << c.heads.head_dim << ", " << format_name(format);
}

class KernelTest : public test::EachSimdTarget {};

INSTANTIATE_TEST_SUITE_P(Simd, KernelTest, testing::ValuesIn(test::simd_targets()), test::simd_target_name);

TEST_P(KernelTest, RandomTrees) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 60; ++i) {
    test::RandomShape shape{.max_length = 250};
    shape.sliding = i % 3 == 0;
    AttentionCase c = test::random_case(shape, random);
    const int kv_heads = static_cast<int>(random() % 3) + 1;
    constexpr int kDims[] = {16, 64, 80, 96, 128};
    c.heads = {.n_head = kv_heads * (static_cast<int>(random() % 4) + 1),
               .n_kv_head = kv_heads,
               .head_dim = kDims[random() % std::size(kDims)],
               .scale = 0.15F};
    const std::uint64_t pool_seed = random();
    const int n_workers = static_cast<int>(random() % 3) + 1;
    for (const KvFormat format : kKvFormats) {
      expect_reference(c, pool_seed, n_workers, format);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(KernelTest, HeadSizesAndGroupings) {
  for (const int dim : {64, 80, 96, 128, 256}) {
    for (const auto& [n_head, n_kv_head] : {std::pair(1, 1), {9, 3}, {8, 1}, {7, 1}, {16, 2}, {12, 12}}) {
      // Lone rows, and a prefix under more queries than a vector has lanes.
      const std::vector<test::Path> paths = {{.length = 70, .reads = false},
                                             {.parent = 0, .shared = 64, .length = 75, .n_rows = 9},
                                             {.parent = 0, .shared = 64, .length = 66},
                                             {.length = 41}};
      AttentionCase c = test::make_case("heads", paths, 16, {}, 1);
      c.heads = {n_head, n_kv_head, dim, 0.1F};
      for (const KvFormat format : kKvFormats) {
        expect_reference(c, 1, 1, format);
        if (HasFatalFailure()) return;
      }
    }
  }
}

/// Few queries meet f16 as f32: a hundred times as exactly as kTolerance lets pass.
TEST_P(KernelTest, FewQueriesOnF16ArePrecise) {
  for (const int dim : {64, 80, 256}) {
    for (const int n_head : {3, 6}) {
      const std::vector<test::Path> paths = {{.length = 250}, {.length = 41}, {.length = 1}};
      AttentionCase c = test::make_case("few", paths, 16, {}, 1);
      c.heads = {n_head, 3, dim, 0.1F};
      const test::PoolData pool(c, 1, KvFormat::kF16);
      const auto q = test::make_queries(c, 2);
      std::vector<float> expected(q.size());
      attend_reference(c.heads, pool.view, c.group, c.rows(), q, expected);
      ASSERT_LT(distance(c, attend(c, pool, q, 1).out, expected), kTolerance / 100) << dim << ", " << n_head;
    }
  }
}

TEST_P(KernelTest, ScoresOfAnySizeKeepFinite) {
  AttentionCase c = test::named_case("8 unrelated at 400");
  for (const float scale : {0.0F, 1e-6F, 30.0F, 300.0F}) {
    c.heads.scale = scale;
    const auto q = test::make_queries(c, 4);
    for (const KvFormat format : kKvFormats) {
      const test::PoolData pool(c, 3, format);
      for (const float v : attend(c, pool, q, 1).out) {
        ASSERT_TRUE(std::isfinite(v)) << "scale " << scale << ", " << format_name(format);
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
TEST_P(KernelTest, CodesAtTheirLargestDontOverflow) {
  for (const int dim : {64, 80, 256, 512, 1024}) {
    const std::vector<test::Path> paths = {{.length = 128}};
    AttentionCase c = test::make_case("largest", paths, 64, {}, 1);
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
      std::vector<float> q(static_cast<std::size_t>(dim));
      attention::decode_head(format, dim, pool.keys.data(), q.data());
      std::vector<float> expected(q.size());
      const auto rows = c.rows();
      attend_reference(c.heads, pool.view, c.group, rows, q, expected);
      ASSERT_LT(distance(c, attend(c, pool, q, 1).out, expected), kTolerance) << dim << ", " << format_name(format);
    }
  }
}

/// The same of f16 under many queries: heads of equal values are as long as their largest value allows, and a lone large
/// value is as large. Every other key is 0 and its value the opposite, so a sum that leaves 32 bits turns the answer.
/// 65,504 is the largest that f16 holds.
TEST_P(KernelTest, ManyQueriesOfLargestHeadsDontOverflow) {
  for (const int dim : {16, 64, 80, 256, 1024}) {
    for (const float size : {6e-8F, 1.0F, 65504.0F}) {
      for (const bool equal : {true, false}) {
        std::vector<test::Path> paths = {{.length = 128, .reads = false}};
        paths.resize(17, {.parent = 0, .shared = 128, .length = 129});
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

/// A slot that has nearly all the weight isn't drowned by the rounding of others' values, 10,000 times as large as its own.
TEST_P(KernelTest, SmallValuesOfHeavySlotsCount) {
  constexpr int kDim = 64, kTokens = 128;
  std::vector<test::Path> paths = {{.length = kTokens, .reads = false}};
  paths.resize(17, {.parent = 0, .shared = kTokens, .length = kTokens + 1});
  AttentionCase c = test::make_case("heavy", paths, 64, {}, 1);
  c.heads = {.n_head = 1, .n_kv_head = 1, .head_dim = kDim, .scale = 1.0F};
  std::mt19937_64 random(test::test_seed());
  std::normal_distribution<float> normal;
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

/// Keys that f16 can't hold: whatever they weigh, they spoil nobody's answer.
/// A key's infinite channels: one scores infinity, two may score infinity minus infinity.
TEST_P(KernelTest, InfiniteKeysLeaveAnswersFinite) {
  constexpr int kDim = 64;
  for (const int n_rows : {1, 16}) {
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
        for (std::size_t i = 0; i < channels; ++i) head[3 + 2 * i] = std::numeric_limits<float>::infinity();
        const auto slot = static_cast<std::size_t>(c.rows()[0].table.slot(position));
        attention::encode_head(KvFormat::kF16, kDim, head.data(), pool.keys.data() + slot * pool.view.row_bytes);
        for (const float x : attend(c, pool, q, 1).out) {
          ASSERT_TRUE(std::isfinite(x)) << n_rows << " rows, " << channels << " channels of position " << position;
        }
      }
    }
  }
}

/// A pool whose first key head is this one's `kv_head`.
attention::PoolView only(const AttentionCase& c, attention::PoolView pool, int kv_head) {
  const std::size_t skipped = attention::head_bytes(pool.format, c.heads.head_dim) * static_cast<std::size_t>(kv_head);
  pool.keys += skipped, pool.values += skipped;
  return pool;
}

/// Distance from the reference of some rows of the step under one head, both drawn at random; the first sequence is always
/// among theirs.
double sampled_distance(const AttentionCase& c, const test::PoolData& pool, std::span<const float> q,
                        std::span<const float> out, std::mt19937_64& random) {
  constexpr int kRows = 4;
  const auto dim = static_cast<std::size_t>(c.heads.head_dim), n_head = static_cast<std::size_t>(c.heads.n_head);
  const std::size_t head = random() % n_head;
  const HeadShape one{.n_head = 1, .n_kv_head = 1, .head_dim = c.heads.head_dim, .scale = c.heads.scale};
  const auto sequences = c.rows();
  std::vector<attention::SequenceRows> drawn;
  std::vector<float> queries, actual;
  for (int i = 0; i < kRows; ++i) {
    attention::SequenceRows s = sequences[i == 0 ? 0 : random() % sequences.size()];
    const int row = static_cast<int>(random() % static_cast<std::uint64_t>(s.n_rows));
    const std::size_t at = (static_cast<std::size_t>(s.first_row + row) * n_head + head) * dim;
    drawn.push_back({i, 1, s.first_position + row, s.table});
    queries.insert(queries.end(), q.begin() + static_cast<std::ptrdiff_t>(at),
                   q.begin() + static_cast<std::ptrdiff_t>(at + dim));
    actual.insert(actual.end(), out.begin() + static_cast<std::ptrdiff_t>(at),
                  out.begin() + static_cast<std::ptrdiff_t>(at + dim));
  }
  std::vector<float> expected(queries.size());
  const int kv_head = static_cast<int>(head) / c.heads.heads_per_kv();
  attend_reference(one, only(c, pool.view, kv_head), c.group, drawn, queries, expected);
  return distance(c, actual, expected);
}

/// Long prefixes, hundreds of rows, windows, chunks beside decodes. On the machine's best instruction set only: small
/// trees run on all.
TEST(Kernel, LongPrefixesAndChunksAgreeWithTheReference) {
  std::mt19937_64 random(test::test_seed());
  for (const AttentionCase& c : test::named_cases()) {
    const auto q = test::make_queries(c, random());
    for (const KvFormat format : kKvFormats) {
      const test::PoolData pool(c, random(), format);
      const std::vector<float> out = attend(c, pool, q, 2).out;
      EXPECT_LT(sampled_distance(c, pool, q, out, random), 5e-4) << c.name << ", " << format_name(format);
    }
  }
}

/// A block that brings no larger score must leave the states as they are, to the last bit: a factor that is 1 but for a
/// rounding makes keys weigh more the earlier they come, by as much as there are blocks.
TEST_P(KernelTest, AThousandBlocksWeighAlike) {
  constexpr int kTokens = 8192, kDim = 64;
  for (const int n_rows : {1, 16}) {  // vectors along values, and across queries
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

/// [A4]: the slots that somebody sees, no other ones, and each once.
TEST(Kernel, ReadsWhatDecodesShareOnce) {
  // Where nine queries of a key head are too few for vectors across queries, they take three passes over a block.
  const std::map<std::string, int> again = {{"8+8 on two branches, 3 sharing 200 more", 2 * 192}};
  for (const char* name :
       {"16 decodes on a 2,048 prefix", "8+8 on two branches, 3 sharing 200 more", "8 unrelated at 400",
        "one decode at 2,048", "30,000 prefix + sixty 20-token tails", "16 decodes on a 2,048 prefix, window 512"}) {
    const AttentionCase c = test::named_case(name);
    const auto q = test::make_queries(c, 6);
    for (const KvFormat format : kKvFormats) {
      const test::PoolData pool(c, 5, format);
      const std::uint64_t row = 2 * pool.view.row_bytes, read = attend(c, pool, q, 2).bytes_read;
      const auto unique = static_cast<std::uint64_t>(c.unique_slots());
      EXPECT_GE(read, unique * row) << name << ", " << format_name(format);
      const auto passes = static_cast<std::uint64_t>(again.contains(name) ? again.at(name) : 0);
      EXPECT_LE(read, (unique + passes) * row) << name << ", " << format_name(format);
    }
  }
}

/// The blocks of `from`, each at its other place.
test::PoolData moved(const AttentionCase& from, const test::PoolData& pool, const AttentionCase& to) {
  test::PoolData copy(to, 0, pool.view.format);
  const std::size_t bytes = pool.view.block_bytes();
  for (std::size_t s = 0; s < from.sequences.size(); ++s) {
    for (std::size_t i = 0; i < from.sequences[s].table.size(); ++i) {
      const auto at = static_cast<std::size_t>(from.sequences[s].table[i]) * bytes;
      const auto there = static_cast<std::size_t>(to.sequences[s].table[i]) * bytes;
      std::memcpy(copy.keys.data() + there, pool.keys.data() + at, bytes);
      std::memcpy(copy.values.data() + there, pool.values.data() + at, bytes);
    }
  }
  return copy;
}

TEST(Kernel, TheSameBitsOnShuffledBlocksAndWhoeverDoesTheWork) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  const AttentionCase c = test::named_case("mixed: 500-row chunk + 8 decodes on its prefix");
  const auto q = test::make_queries(c, 8);
  for (const KvFormat format : kKvFormats) {
    const test::PoolData pool(c, 7, format);
    const auto first = attend(c, pool, q, 2).out;
    EXPECT_EQ(attend(c, pool, q, 2).out, first) << format_name(format);
    for (int i = 0; i < 2; ++i) {
      const AttentionCase other = test::shuffled(c, random);
      ASSERT_NE(other.sequences[0].table, c.sequences[0].table);
      EXPECT_EQ(attend(other, moved(c, pool, other), q, 2).out, first) << format_name(format);
    }
  }
}

}  // namespace
}  // namespace coppice
