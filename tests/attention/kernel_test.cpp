// The CPU kernel against the scalar reference: on every instruction set that this machine has, for decode, chunks and
// both, full attention and windows, all head sizes, groupings and KV formats. Slots that nobody may see hold NaN.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "attention/attend.h"
#include "attention/cpu/kv_codec.h"
#include "attention/cpu/tree_attention.h"
#include "attention/reference.h"
#include "support/sanitized.h"
#include "support/simd_targets.h"

namespace coppice {
namespace {

using attention::HeadShape;
using attention::kKvFormats;
using attention::KvFormat;
using test::attend;
using test::Attended;
using test::AttentionCase;
using test::distance;
using test::expect_reference;
using test::kTolerance;

TEST(KernelOnEachTarget, RandomTrees) {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < (test::kThreadSanitizer || test::kEmulated ? 15 : 60); ++i) {
    test::RandomShape shape{.max_length = 250};
    shape.sliding = i % 3 == 0;
    shape.both_ways = i % 4 < 2;
    AttentionCase c = test::random_case(shape, random);
    const int kv_heads = static_cast<int>(random() % 3) + 1;
    constexpr int kDims[] = {16, 64, 80, 96, 128};
    c.heads = {.n_head = kv_heads * (static_cast<int>(random() % 4) + 1),
               .n_kv_head = kv_heads,
               .head_dim = kDims[random() % std::size(kDims)],
               .scale = 0.15F,
               .softcap = i % 4 == 1 ? 1.5F : 0.0F};
    const std::uint64_t pool_seed = random();
    const int n_workers = static_cast<int>(random() % 3) + 1;
    for (const KvFormat format : kKvFormats) {
      expect_reference(c, pool_seed, n_workers, format);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(KernelOnEachTarget, HeadSizesAndGroupings) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "it has one worker";
  for (const int dim : {64, 80, 96, 128, 256, 512}) {
    for (const auto& [n_head, n_kv_head] : {std::pair(1, 1), {9, 3}, {8, 1}, {7, 1}, {16, 2}, {12, 12}}) {
      if (test::kSlow && n_head > 8) continue;  // the largest take most of the time
      // Lone rows, and a prefix under more queries than a vector has lanes.
      const std::vector<test::Path> paths = {{.length = 70, .reads = false},
                                             {.parent = 0, .shared = 64, .length = 75, .n_rows = 9},
                                             {.parent = 0, .shared = 64, .length = 66},
                                             {.length = 41}};
      AttentionCase c = test::make_case("heads", paths, 16, {}, 1);
      c.heads = {n_head, n_kv_head, dim, 0.1F};
      for (const KvFormat format : kKvFormats) {
        expect_reference(c, 1, 1, format);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

/// Few queries meet f16 as f32: a hundred times as exactly as kTolerance lets pass.
TEST(KernelOnEachTarget, FewQueriesOnF16ArePrecise) {
  for (const int dim : {64, 80, 256}) {
    for (const int n_head : {3, 6}) {
      const std::vector<test::Path> paths = {{.length = 250}, {.length = 41}, {.length = 1}};
      AttentionCase c = test::make_case("few", paths, 16, {}, 1);
      c.heads = {n_head, 3, dim, 0.1F};
      const test::PoolData pool(c, 1, KvFormat::kF16);
      const auto q = test::make_queries(c, 2);
      std::vector<float> expected(q.size());
      attend_reference(c.heads, pool.view, c.group, c.rows(), q, expected);
      test::on_each_target([&] {
        ASSERT_LT(distance(c, attend(c, pool, q, 1).out, expected), kTolerance / 100) << dim << ", " << n_head;
      });
    }
  }
}

TEST(KernelOnEachTarget, SinksWeighInEachRowOnce) {
  std::mt19937_64 random(test::test_seed());
  for (int round = 0; round < 20; ++round) {
    const AttentionCase c = test::random_case({.sliding = round % 2 == 1}, random);
    const test::PoolData pool(c, random(), attention::kKvFormats[static_cast<std::size_t>(round) % 3]);
    const auto q = test::make_queries(c, random());
    std::vector<float> sinks, expected(q.size());
    for (int h = 0; h < c.heads.n_head; ++h) sinks.push_back(static_cast<float>(h % 5) - 1.0F);
    attend_reference(c.heads, pool.view, c.group, c.rows(), q, expected, sinks);
    test::on_each_target([&] {
      ASSERT_LT(distance(c, attend(c, pool, q, 2, sinks.data()).out, expected), kTolerance) << "round " << round;
    });
  }
}

/// A pool whose first key head is this one's `kv_head`.
attention::PoolView only(const AttentionCase& c, attention::PoolView pool, int kv_head) {
  const std::size_t skipped = attention::head_bytes(pool.format, c.heads.head_dim) * static_cast<std::size_t>(kv_head);
  pool.keys += skipped, pool.values += skipped;
  return pool;
}

/// Distance from the reference of some rows of the step under one head, both drawn at random; the first sequence is
/// always among theirs.
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

/// Ten runs of all cases came to 3.3e-4, and one in some tens to 5.3e-4. One key of n costs some 1 / sqrt(n): of 30,000
/// 6e-3.
constexpr double kSampled = 1e-3;

/// Long prefixes, hundreds of rows, windows, chunks beside decodes.
TEST(KernelOnEachTarget, LongPrefixesAndChunksAgreeWithTheReference) {
  std::mt19937_64 random(test::test_seed());
  for (const AttentionCase& c : test::named_cases()) {
    const auto q = test::make_queries(c, random());
    for (const KvFormat format : kKvFormats) {
      const test::PoolData pool(c, random(), format);
      test::on_each_target([&] {
        const std::vector<float> out = attend(c, pool, q, 2).out;
        EXPECT_LT(sampled_distance(c, pool, q, out, random), kSampled) << c.name << ", " << format_name(format);
      });
    }
  }
}

/// What is read: the slots that somebody sees, no other ones, and each once.
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

/// A pass over a block holds four queries of a tile of few, and a tile of many 256 (docs/decisions.md,
/// "The tree kernel on CPUs").
TEST(Kernel, ReadsAgainOnlyForMoreQueriesThanAPassHolds) {
  struct Shape {
    int n_head, n_kv_head, n_decodes, most_passes;
  };
  for (const Shape& s : {Shape{9, 3, 1, 1}, Shape{9, 3, 2, 2}, Shape{28, 4, 1, 2}, Shape{16, 16, 4, 1},
                         Shape{32, 1, 8, 1}, Shape{32, 1, 16, 2}, Shape{64, 1, 16, 4}}) {
    AttentionCase c = test::named_case("16 decodes on a 2,048 prefix");
    c.heads.n_head = s.n_head;
    c.heads.n_kv_head = s.n_kv_head;
    c.sequences.resize(static_cast<std::size_t>(s.n_decodes));
    const auto q = test::make_queries(c, 6);
    const test::PoolData pool(c, 5);
    const auto unique = static_cast<std::uint64_t>(c.unique_slots());
    const std::uint64_t row = 2 * pool.view.row_bytes, read = attend(c, pool, q, 2).bytes_read;
    const auto own_passes = static_cast<std::uint64_t>((s.n_head / s.n_kv_head + 3) / 4);  // of each row's own 20 slots
    const auto own = static_cast<std::uint64_t>(s.n_decodes) * 20;
    EXPECT_GE(read, unique * row) << s.n_decodes << " of " << s.n_head << "/" << s.n_kv_head;
    EXPECT_LE(read, ((unique - own) * static_cast<std::uint64_t>(s.most_passes) + own * own_passes) * row)
        << s.n_decodes << " of " << s.n_head << "/" << s.n_kv_head;
  }
}

/// The blocks of `from`, each at its other place.
test::PoolData moved(const AttentionCase& from, const test::PoolData& pool, const AttentionCase& to) {
  test::PoolData copy(to, 0, pool.view.format);
  const std::size_t bytes = pool.view.block_stride;
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

/// A block's keys, its values, and what belongs to other layers: as they lie in the pages of an executor.
class Paged {
 public:
  Paged(const AttentionCase& c, const test::PoolData& pool) : view(pool.view) {
    const std::size_t block = pool.view.block_stride, offset = 3 * pool.view.row_bytes;
    view.block_stride = offset + 2 * block + 16;
    bytes_.assign(view.block_stride * static_cast<std::size_t>(c.n_blocks), std::byte{0xFF});
    for (std::size_t b = 0; b < static_cast<std::size_t>(c.n_blocks); ++b) {
      std::byte* to = bytes_.data() + b * view.block_stride + offset;
      std::memcpy(to, pool.keys.data() + b * block, block);
      std::memcpy(to + block, pool.values.data() + b * block, block);
    }
    view.keys = bytes_.data() + offset;
    view.values = view.keys + block;
  }
  attention::PoolView view;

 private:
  std::vector<std::byte> bytes_;
};

TEST(Kernel, TheSameBitsFromPagesThatOtherLayersShare) {
  std::mt19937_64 random(test::test_seed());
  for (const AttentionCase& c : test::named_cases()) {
    const auto q = test::make_queries(c, 8);
    for (const KvFormat format : kKvFormats) {
      test::PoolData pool(c, random(), format);
      const auto expected = attend(c, pool, q, 2).out;
      const Paged paged(c, pool);
      pool.view = paged.view;
      EXPECT_EQ(attend(c, pool, q, 2).out, expected) << c.name << ", " << format_name(format);
    }
  }
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
