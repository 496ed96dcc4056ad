// The fake executor by itself: it must do all that a batch can ask for, also what no engine asks for yet.
#include "support/fake_executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "support/fake_generation.h"

namespace coppice::testing {
namespace {

using executor::RopePosition;
using executor::RowSource;
using kv::BlockId;
using kv::BlockOp;
using Hashes = std::vector<std::uint64_t>;

/// Steps by hand on one group of blocks of four slots.
class ByHand {
 public:
  struct Part {
    std::vector<BlockId> blocks;
    std::int32_t first = 0;
    std::vector<RowSource> rows;
    std::vector<RopePosition> positions = {};
  };

  /// What each row gives, of each part in turn.
  Hashes step(const std::vector<Part>& parts, std::vector<BlockOp> ops = {}) {
    executor::Batch batch{.block_ops = std::move(ops)};
    for (const Part& part : parts) {
      batch.rows.insert(batch.rows.end(), part.rows.begin(), part.rows.end());
      batch.positions.insert(batch.positions.end(), part.positions.begin(), part.positions.end());
      batch.sequences.push_back({.n_rows = static_cast<int>(part.rows.size()),
                                 .first_position = part.first,
                                 .tables = {{.blocks = part.blocks, .block_size = kSlots}}});
    }
    for (int row = 0; row < batch.n_rows(); ++row) batch.logit_rows.push_back(row);
    batch.embeddings.assign(embeddings.begin(), embeddings.end());
    batch.outside.assign(outside.begin(), outside.end());
    const executor::Result result = executor_.forward(batch);
    Hashes hashes;
    for (std::size_t i = 0; i < batch.rows.size(); ++i) hashes.push_back(read_hash(result.logits.row(i)));
    return hashes;
  }
  std::vector<std::vector<float>> embeddings;                 ///< that rows may have
  std::vector<std::vector<std::byte>> outside{2, {300, {}}};  ///< to where blocks may be stored
  const std::vector<std::string>& faults() const { return executor_.faults(); }

 private:
  static constexpr int kSlots = 4;
  FakeExecutor executor_{
      {.block_size = kSlots, .num_blocks = 10, .groups = {{.kind = kv::GroupKind::kFull, .layers = {0}}}}};
};

TEST(FakeExecutor, RunsBlockOperationsInTheirOrder) {
  const std::vector<RowSource> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
  ByHand plain, moved;
  for (ByHand* one : {&plain, &moved}) one->step({{{1}, 0, a}, {{2}, 0, b}});
  // Block 1 is stored before b is copied over it, and a comes back elsewhere.
  const auto hashes = moved.step({{{3, 4}, 4, {9}}, {{1, 5}, 4, {9}}},
                                 {{.kind = BlockOp::Kind::kStore, .src = 1, .n_slots = 4, .outside = 1},
                                  {.kind = BlockOp::Kind::kCopy, .src = 2, .dst = 1, .n_slots = 4},
                                  {.kind = BlockOp::Kind::kLoad, .dst = 3, .n_slots = 4, .outside = 1}});
  EXPECT_EQ(hashes, plain.step({{{1, 4}, 4, {9}}, {{2, 5}, 4, {9}}}));
  EXPECT_EQ(moved.faults(), std::vector<std::string>{});
  moved.step({{{6, 8}, 4, {9}}}, {{.kind = BlockOp::Kind::kLoad, .dst = 6, .n_slots = 4, .outside = 0}});
  EXPECT_FALSE(moved.faults().empty()) << "nothing was stored there";
}

// What a state's pages hold goes out and comes back, too; and a step need not have rows.
TEST(FakeExecutor, StatesAreStoredAndLoaded) {
  FakeExecutor executor({.block_size = 4,
                         .num_blocks = 20,
                         .groups = {{.kind = kv::GroupKind::kFull, .layers = {0}},
                                    {.kind = kv::GroupKind::kRecurrent, .layers = {1}, .state_pages = 2}}});
  std::vector<std::vector<std::byte>> memory(3, std::vector<std::byte>(executor.info().outside_bytes(0)));
  const auto step = [&](const std::vector<RowSource>& rows, std::int32_t first, std::vector<BlockId> blocks,
                        std::vector<BlockId> in, std::vector<BlockId> out) {
    executor::Batch batch{.rows = rows, .sequences = {}, .logit_rows = {static_cast<std::int32_t>(rows.size()) - 1}};
    batch.sequences.push_back({.n_rows = static_cast<int>(rows.size()),
                               .first_position = first,
                               .tables = {{.blocks = blocks, .block_size = 4}},
                               .both_ways = {},
                               .state_in = in,
                               .state_out = out});
    return read_hash(executor.forward(batch).logits.row(0));
  };
  step({1, 2, 3, 4}, 0, {1}, {}, {2, 3});
  executor::Batch moves;
  for (const auto kind : {BlockOp::Kind::kStore, BlockOp::Kind::kLoad}) {
    const BlockId to = kind == BlockOp::Kind::kLoad ? 10 : 0;
    for (int i = 0; i < 3; ++i)
      moves.block_ops.push_back({.kind = kind,
                                 .src = i + 1,
                                 .dst = to + i + 1,
                                 .n_slots = 4,
                                 .group = i == 0 ? 0 : 1,
                                 .outside = static_cast<std::uint64_t>(i)});
  }
  moves.outside.assign(memory.begin(), memory.end());
  executor.forward(moves);
  const std::uint64_t there = step({5}, 4, {11, 8}, {12, 13}, {12, 13});
  EXPECT_EQ(there, step({5}, 4, {1, 9}, {2, 3}, {2, 3}));
  EXPECT_EQ(executor.faults(), std::vector<std::string>{});
}

// A picture's rows among tokens: what follows depends on their values, not on which step or batch had them, or where
// they lay.
TEST(FakeExecutor, RowsMayBeEmbeddings) {
  const auto picture = [](int i) { return RowSource::embedding(i); };
  ByHand whole, cut, other;
  whole.embeddings = {{1, 2, 3, 4}, {5, 6, 7, 8}};
  cut.embeddings = {{5, 6, 7, 8}, {1, 2, 3, 4}};
  other.embeddings = {{1, 2, 3, 4}, {5, 6, 7, 9}};
  const Hashes hashes = whole.step({{{1, 2}, 0, {7, picture(0), picture(1), 8, 9}}});
  ASSERT_EQ(hashes.size(), 5U);
  cut.step({{{1}, 0, {7, picture(1)}}});
  EXPECT_EQ(cut.step({{{1, 2}, 2, {picture(0), 8, 9}}}), Hashes(hashes.begin() + 2, hashes.end()));
  const Hashes others = other.step({{{1, 2}, 0, {7, picture(0), picture(1), 8, 9}}});
  EXPECT_EQ(others[1], hashes[1]);
  for (const std::size_t row : {2U, 3U, 4U}) EXPECT_NE(others[row], hashes[row]);
  for (ByHand* one : {&whole, &cut, &other}) EXPECT_EQ(one->faults(), std::vector<std::string>{});
  whole.step({{{3}, 0, {picture(2)}}});
  EXPECT_FALSE(whole.faults().empty()) << "there is no such embedding";
}

// What rows are rotated by is one thing, which slots they have and what they see another.
TEST(FakeExecutor, RowsMayHavePositionsOfTheirOwn) {
  const std::vector<RowSource> rows = {1, 2, 3};
  ByHand plain, rotated, again;
  const Hashes without = plain.step({{{1, 2}, 0, rows}});
  const Hashes with = rotated.step({{{1, 2}, 0, rows, {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}}}});
  EXPECT_NE(with[2], without[2]);
  EXPECT_EQ(again.step({{{1, 2}, 0, rows, {{0, 0, 0}, {1, 1, 1}, {1, 1, 2}}}}), with);
  EXPECT_EQ(rotated.faults(), std::vector<std::string>{});
  rotated.step({{{3}, 0, {1, 2}, {{0, 0, 0}}}});
  EXPECT_FALSE(rotated.faults().empty()) << "two rows, one position";
}

}  // namespace
}  // namespace coppice::testing
