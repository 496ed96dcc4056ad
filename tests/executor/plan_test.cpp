// StepPlan: who is put into one attention call with whom. Pure data.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "executor/ggml/attention.h"
#include "executor/ggml/step_plan.h"

namespace coppice::executor {
namespace {

constexpr int kBlock = 32;

/// A batch of sequences given as {blocks, first position, rows}.
class Batches {
 public:
  Batches& add(std::vector<kv::BlockId> blocks, int first_position, int rows) {
    tables_.push_back(std::move(blocks));
    BatchSequence s;
    s.first_row = batch_.n_rows();
    s.n_rows = rows;
    s.first_position = first_position;
    for (int r = 0; r < rows; ++r) {
      batch_.tokens.push_back(1);
      batch_.positions.push_back(first_position + r);
    }
    batch_.logit_rows.push_back(batch_.n_rows() - 1);
    batch_.sequences.push_back(s);
    return *this;
  }
  const Batch& get() {
    for (std::size_t i = 0; i < tables_.size(); ++i) {
      batch_.sequences[i].tables.assign(groups_, kv::TableView{tables_[i], kBlock});
    }
    return batch_;
  }
  Batches& groups(std::size_t n) {
    groups_ = n;
    return *this;
  }

 private:
  std::vector<std::vector<kv::BlockId>> tables_;
  std::size_t groups_ = 1;
  Batch batch_;
};

std::vector<kv::BlockId> run(kv::BlockId first, int n) {
  std::vector<kv::BlockId> blocks(static_cast<std::size_t>(n));
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

std::vector<kv::BlockId> operator+(std::vector<kv::BlockId> a, const std::vector<kv::BlockId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const std::vector<kv::GroupSpec> kFull{{kv::GroupKind::kFull, 0, {0}, 4}};

/// Every real row appears once, units cover the rows, and each row sees exactly its own positions' slots.
void check(const Batch& batch, const StepPlan& plan, const std::vector<kv::GroupSpec>& groups) {
  std::multiset<std::int32_t> rows(plan.batch_row.begin(), plan.batch_row.end());
  rows.erase(-1);
  EXPECT_EQ(rows.size(), batch.tokens.size());
  EXPECT_EQ(std::set<std::int32_t>(rows.begin(), rows.end()).size(), batch.tokens.size());
  int next = 0;
  for (std::size_t u = 0; u < plan.units.size(); ++u) {
    const Unit& unit = plan.units[u];
    const UnitShape& shape = plan.shape.units[u];
    EXPECT_EQ(unit.first_row, next);
    next += shape.n_streams * shape.n_rows;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      std::vector<std::multiset<kv::Slot>> seen(static_cast<std::size_t>(shape.n_streams * shape.n_rows));
      for_each_visible_run(batch, unit, groups[g], g, [&](int row, std::int64_t first, std::int64_t end) {
        const int stream = row / shape.n_rows;
        EXPECT_LE(end, shape.keys[g]);
        for (std::int64_t key = first; key < end; ++key) {
          const auto column = static_cast<std::size_t>(stream * (shape.keys[g] / kBlock) + key / kBlock);
          seen[static_cast<std::size_t>(row)].insert(kv::Slot{unit.blocks[g][column]} * kBlock + key % kBlock);
        }
      });
      for (const UnitSequence& us : unit.sequences) {
        const BatchSequence& s = batch.sequences[static_cast<std::size_t>(us.sequence)];
        for (int r = 0; r < s.n_rows; ++r) {
          std::multiset<kv::Slot> expected;
          const std::int64_t last = s.first_position + r;
          for (std::int64_t p = first_visible(groups[g], last); p <= last; ++p) {
            if (s.tables[g].slot(p) >= kBlock) expected.insert(s.tables[g].slot(p));
          }
          EXPECT_EQ(seen[static_cast<std::size_t>(us.first_row - unit.first_row + r)], expected);
        }
      }
    }
  }
  EXPECT_EQ(next, plan.shape.n_rows);
}

TEST(StepPlan, UnrelatedDecodesAreStreamsOfOneCall) {
  Batches b;
  for (int i = 0; i < 8; ++i) b.add(run(1 + 20 * i, 13), 400, 1);
  const StepPlan plan = plan_step(b.get(), kFull, {});
  check(b.get(), plan, kFull);
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_EQ(plan.shape.units[0].n_streams, 8);
  EXPECT_EQ(plan.shape.units[0].keys[0], 16 * kBlock);  // 13 blocks, padded to 16
}

TEST(StepPlan, StreamsOfVeryDifferentLengthDoNotPadEachOther) {
  Batches b;
  b.add(run(1, 60), 60 * kBlock - 1, 1).add(run(100, 2), 40, 1).add(run(200, 58), 58 * kBlock - 1, 1);
  const StepPlan plan = plan_step(b.get(), kFull, {});
  check(b.get(), plan, kFull);
  ASSERT_EQ(plan.units.size(), 2U);
  EXPECT_EQ(plan.shape.units[0].n_streams, 2);
  EXPECT_EQ(plan.shape.units[1].n_streams, 1);
}

TEST(StepPlan, ALongSharedPrefixIsGatheredOnce) {
  Batches b;
  const auto prefix = run(1, 47);
  for (int i = 0; i < 8; ++i) b.add(prefix + run(100 + 10 * i, 3), 50 * kBlock - 1, 1);
  const StepPlan plan = plan_step(b.get(), kFull, {});
  check(b.get(), plan, kFull);
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_EQ(plan.shape.units[0].n_streams, 1);
  EXPECT_EQ(plan.shape.units[0].n_rows, 8);
  const auto& blocks = plan.units[0].blocks[0];
  for (const kv::BlockId id : prefix) EXPECT_EQ(std::ranges::count(blocks, id), 1);
  EXPECT_EQ(std::ranges::count_if(blocks, [](kv::BlockId id) { return id != kv::kNullBlock; }), 47 + 8 * 3);
}

TEST(StepPlan, AShortSharedPrefixMakesNobodyPayForAUnion) {
  Batches b;
  for (int i = 0; i < 8; ++i) b.add(run(1, 1) + run(100 + 60 * i, 49), 50 * kBlock - 1, 1);
  const StepPlan plan = plan_step(b.get(), kFull, {});
  check(b.get(), plan, kFull);
  ASSERT_EQ(plan.units.size(), 1U);
  EXPECT_EQ(plan.shape.units[0].n_streams, 8);
}

TEST(StepPlan, GroupsMixWithChunksAndStrangers) {
  Batches b;
  const auto prefix = run(1, 40);
  b.add(run(500, 6), 150, 37)
      .add(prefix + run(100, 2), 41 * kBlock + 3, 1)
      .add(run(600, 4), 100, 1)
      .add(prefix + run(110, 2), 41 * kBlock + 9, 1)
      .add(prefix + run(120, 1), 40 * kBlock, 20);
  const StepPlan plan = plan_step(b.get(), kFull, {});
  check(b.get(), plan, kFull);
  EXPECT_EQ(plan.shape.n_rows % 4, 0);
  for (std::size_t i = 0; i < b.get().logit_rows.size(); ++i) {
    EXPECT_EQ(plan.batch_row[static_cast<std::size_t>(plan.output_rows[i])], b.get().logit_rows[i]);
  }
}

TEST(StepPlan, BlockIdsDoNotDecideTheShape) {
  const auto shape = [](kv::BlockId base, int stride) {
    Batches b;
    std::vector<kv::BlockId> prefix;
    for (int i = 0; i < 30; ++i) prefix.push_back(base + stride * i);
    for (int s = 0; s < 4; ++s) {
      b.add(prefix + std::vector<kv::BlockId>{base + stride * (40 - s)}, 30 * kBlock + s, 1);
      b.add(std::vector<kv::BlockId>{base + stride * (60 - s), base + stride * (50 - s)}, 33 + s, 1);
    }
    return plan_step(b.get(), kFull, {});
  };
  const StepPlan a = shape(1, 1), z = shape(900, -7);
  EXPECT_EQ(a.shape, z.shape);
  EXPECT_EQ(a.batch_row, z.batch_row);
}

TEST(StepPlan, SlidingGroupsGatherTheirWindowOnly) {
  const std::vector<kv::GroupSpec> groups{{kv::GroupKind::kFull, 0, {0}, 4}, {kv::GroupKind::kSliding, 40, {1}, 4}};
  Batches b;
  b.groups(2).add(run(1, 20), 20 * kBlock - 8, 8).add(run(100, 20), 20 * kBlock - 1, 1).add(run(200, 1), 3, 1);
  const StepPlan plan = plan_step(b.get(), groups, {});
  check(b.get(), plan, groups);
  for (std::size_t u = 0; u < plan.units.size(); ++u) EXPECT_LE(plan.shape.units[u].keys[1], 4 * kBlock);
}

TEST(StepPlan, WithoutSharingAndPaddingEverySequenceStandsAlone) {
  Batches b;
  b.add(run(1, 3), 90, 1).add(run(1, 3), 91, 1).add(run(10, 2), 30, 20);
  const StepPlan plan = plan_step(b.get(), kFull, {.share = false, .pad = false});
  check(b.get(), plan, kFull);
  ASSERT_EQ(plan.units.size(), 3U);
  EXPECT_EQ(plan.shape.n_rows, 22);
  std::multiset<int> keys;
  for (const UnitShape& u : plan.shape.units) keys.insert(u.keys[0]);
  EXPECT_EQ(keys, (std::multiset<int>{50, 91, 92}));
}

}  // namespace
}  // namespace coppice::executor
