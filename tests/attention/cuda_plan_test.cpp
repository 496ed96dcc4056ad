// Plans for the GPU, without one: the header's invariants on random and named steps, capacities, and what is bundled.
// COPPICE_SEED=n replays a run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>

#include "attention/cuda/tree_plan.h"
#include "support/attention_cases.h"
#include "support/long_form.h"
#include "support/sanitized.h"

namespace coppice::attention::cuda {
namespace {

using test::AttentionCase;
using test::Path;

constexpr TreeLimits kRoomy = {.items = 1 << 16, .item_rows = 1 << 16, .slots = 1 << 16, .merge_rows = 1 << 12};

/// Of one row: how often each slot of the pool is seen.
using Seen = std::map<kv::Slot, int>;

std::vector<Seen> wanted(const AttentionCase& c) {
  std::vector<Seen> seen;
  for (const SequenceRows& s : c.rows()) {
    for (std::int64_t p = s.first_position; p < s.first_position + s.n_rows; ++p) {
      Seen& row = seen.emplace_back();
      for (std::int64_t key = c.group.first_visible(p); key < c.group.end_visible(p, s.both_ways); ++key)
        ++row[s.table.slot(key)];
    }
  }
  return seen;
}

std::span<const Item> items_of(const TreePlan& plan) {
  return std::span(plan.items).first(static_cast<std::size_t>(plan.n_items));
}

kv::BlockId block_of(const TreePlan& plan, const Item& item, int n) {
  const Item& list = n < kItemBlocks ? item : plan.items.at(static_cast<std::size_t>(item.more + n / kItemBlocks - 1));
  return list.blocks[n % kItemBlocks];
}

std::vector<Seen> planned(const TreePlan& plan, int n_rows) {
  std::vector<Seen> seen(static_cast<std::size_t>(n_rows));
  for (const Item& item : items_of(plan)) {
    for (int i = item.first_row; i < item.first_row + item.n_rows; ++i) {
      const ItemRow& r = plan.rows.at(static_cast<std::size_t>(i));
      for (std::int32_t t = r.lo; t < r.hi; ++t) {
        ++seen.at(static_cast<std::size_t>(
            r.row))[kv::Slot{block_of(plan, item, t / kBlockSize)} * kBlockSize + t % kBlockSize];
      }
    }
  }
  return seen;
}

/// Invariants 2 and 3, and the ranges that spare the kernel masks and zeroes.
std::string check_items(const TreePlan& plan, int heads_per_kv) {
  for (const Item& item : items_of(plan)) {
    if (item.n_blocks < 1) return fmt::format("{} blocks", item.n_blocks);
    if (item.n_rows < 1 || item.n_rows * heads_per_kv > kItemQueries) return fmt::format("{} rows", item.n_rows);
    std::vector<int> last(static_cast<std::size_t>(item.n_blocks), 0);
    for (int i = item.first_row; i < item.first_row + item.n_rows; ++i) {
      const ItemRow& r = plan.rows.at(static_cast<std::size_t>(i));
      if (r.lo < 0 || r.lo >= r.hi || r.hi > item.n_blocks * kBlockSize) return fmt::format("[{}, {})", r.lo, r.hi);
      if (item.full_lo < item.full_hi && (r.lo > item.full_lo || r.hi < item.full_hi)) return "not all rows see `full`";
      for (int t = r.lo; t < r.hi; ++t) {
        int& of_block = last.at(static_cast<std::size_t>(t / kBlockSize));
        of_block = std::max(of_block, t % kBlockSize + 1);
      }
    }
    const int tail = std::max(0, item.n_blocks - kItemBlocks);
    for (int b = 0; b < item.n_blocks; ++b) {
      const int seen = b < tail ? kBlockSize : item.seen[b - tail];
      // Gaps between two windows may count as seen, the end may not.
      if (seen < last[static_cast<std::size_t>(b)])
        return fmt::format("block {} of {}: {} slots seen", b, item.n_blocks, seen);
      if (b >= tail && (item.ragged >> (b - tail) & 1) != static_cast<unsigned>(seen < kBlockSize)) return "ragged";
      if (tail > 0 && b < item.n_blocks - 1 && seen < kBlockSize) return "a long run is ragged before its end";
    }
  }
  return {};
}

/// Invariant 4, and that just the rows with several partial states are merged.
std::string check_slots(const TreePlan& plan, int n_rows) {
  std::vector<int> in_items(static_cast<std::size_t>(n_rows), 0);
  std::vector<int> owner(static_cast<std::size_t>(plan.n_slots), -1);
  for (const ItemRow& r : plan.rows) {
    ++in_items[static_cast<std::size_t>(r.row)];
    if (r.slot < 0) continue;
    int& o = owner.at(static_cast<std::size_t>(r.slot));
    if (o >= 0) return fmt::format("slot {} is written twice", r.slot);
    o = r.row;
  }
  std::set<int> merged;
  for (const MergeRow& m : plan.merge_rows) {
    merged.insert(m.row);
    if (m.n_slots != in_items[static_cast<std::size_t>(m.row)])
      return fmt::format("row {}: {} slots", m.row, m.n_slots);
    for (int s = m.first_slot; s < m.first_slot + m.n_slots; ++s) {
      if (owner.at(static_cast<std::size_t>(s)) != m.row) return fmt::format("slot {} isn't row {}'s", s, m.row);
    }
  }
  for (int row = 0; row < n_rows; ++row) {
    if (in_items[static_cast<std::size_t>(row)] == 0) return fmt::format("row {} is in no item", row);
    if ((in_items[static_cast<std::size_t>(row)] > 1) != merged.contains(row))
      return fmt::format("row {}'s merging", row);
  }
  for (const ItemRow& r : plan.rows) {
    if ((r.slot < 0) == merged.contains(r.row)) return fmt::format("row {} has slot {}", r.row, r.slot);
  }
  return {};
}

void expect_sound(const AttentionCase& c, const TreePlan& plan, int heads_per_kv) {
  EXPECT_EQ(check_items(plan, heads_per_kv), "");
  EXPECT_EQ(check_slots(plan, c.n_rows()), "");
  EXPECT_EQ(planned(plan, c.n_rows()), wanted(c));
}

const SharePlan& share(SharePlanner& planner, const AttentionCase& c) {
  const std::vector<SequenceRows> rows = c.rows();
  return planner.plan(rows);
}

AttentionCase random_step(std::mt19937_64& random) {
  const test::RandomShape shape = {.max_sequences = 40,
                                   .max_length = 2500,
                                   .max_chunk = 150,
                                   .sliding = random() % 3 == 0,
                                   .both_ways = random() % 3 == 0};
  for (;;) {
    AttentionCase c = test::random_case(shape, random);
    if (c.block_size == kBlockSize) return c;
  }
}

TEST(CudaPlan, CoversEveryVisibleTokenOnce) {
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < (test::kSanitized ? 15 : test::long_form() ? 60 : 20); ++i) {
    const AttentionCase c = random_step(random);
    SharePlanner sharing(c.group);
    const TreeCost cost = {.n_workers = 1 + static_cast<int>(random() % 200),
                           .n_kv_head = 1 << random() % 4,
                           .heads_per_kv = 1 + static_cast<int>(random() % 9),
                           .bundled_blocks = static_cast<int>(random() % 12) - 1};
    TreePlanner planner(kRoomy, cost);
    const TreePlan* plan = planner.plan(share(sharing, c));
    ASSERT_NE(plan, nullptr);
    expect_sound(c, *plan, cost.heads_per_kv);
    if (HasFailure()) return;
  }
}

TEST(CudaPlan, CoversNamedCases) {
  for (const AttentionCase& c : test::named_cases(kBlockSize)) {
    SCOPED_TRACE(c.name);
    SharePlanner sharing(c.group);
    TreePlanner planner(kRoomy, {});
    const TreePlan* plan = planner.plan(share(sharing, c));
    ASSERT_NE(plan, nullptr);
    expect_sound(c, *plan, TreeCost{}.heads_per_kv);
  }
}

TEST(CudaPlan, StaysInsideItsLimits) {
  std::mt19937_64 random(test::test_seed());
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const AttentionCase c = random_step(random);
    SharePlanner sharing(c.group);
    const TreeLimits limits = {.items = 1 + static_cast<int>(random() % 60),
                               .item_rows = 1 + static_cast<int>(random() % 400),
                               .slots = static_cast<int>(random() % 400),
                               .merge_rows = static_cast<int>(random() % 100)};
    TreePlanner planner(limits, {});
    const TreePlan* plan = planner.plan(share(sharing, c));
    if (plan == nullptr) {
      ++refused;
      continue;
    }
    EXPECT_LE(std::ssize(plan->items), limits.items);
    EXPECT_LE(std::ssize(plan->rows), limits.item_rows);
    EXPECT_LE(plan->n_slots, limits.slots);
    EXPECT_LE(std::ssize(plan->merge_rows), limits.merge_rows);
    expect_sound(c, *plan, TreeCost{}.heads_per_kv);
    if (HasFailure()) return;
  }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, 200);
}

TEST(CudaPlan, WorstCaseHoldsEveryStep) {
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 100; ++i) {
    const AttentionCase c = random_step(random);
    SharePlanner sharing(c.group);
    const TreeLimits limits = worst_case(c.n_rows(), static_cast<int>(c.sequences.size()), 2500 + 150);
    TreePlanner planner(limits, {.heads_per_kv = 1 + static_cast<int>(random() % 8)});
    ASSERT_NE(planner.plan(share(sharing, c)), nullptr);
  }
}

std::string bytes_of(const TreePlan& plan) {
  const auto bytes = [](const auto& v) {
    return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof v[0]);
  };
  return bytes(plan.items) + bytes(plan.rows) + bytes(plan.merge_rows);
}

TEST(CudaPlan, EqualStepsGiveEqualPlans) {
  const AttentionCase c = test::named_case("8+8 on two branches, 3 sharing 200 more", kBlockSize);
  SharePlanner sharing(c.group), other(c.group);
  TreePlanner planner(kRoomy, {}), second(kRoomy, {});
  const std::string bytes = bytes_of(*planner.plan(share(sharing, c)));
  const AttentionCase between = test::named_case("8 unrelated at 400", kBlockSize);
  planner.plan(share(sharing, between));
  EXPECT_EQ(bytes, bytes_of(*planner.plan(share(sharing, c))));
  EXPECT_EQ(bytes, bytes_of(*second.plan(share(other, c))));
}

// One item more for each of 64 fresh branches would cost more than the prefix.
TEST(CudaPlan, BundlesFreshBranches) {
  std::vector<Path> paths = {{.length = 2048, .reads = false}};
  for (int i = 0; i < 64; ++i) paths.push_back({.parent = 0, .shared = 2048, .length = 2048 + 1 + i % 30});
  const AttentionCase c = test::make_case("fresh", paths, kBlockSize, {}, 1);
  SharePlanner sharing({});
  TreePlanner bundling(kRoomy, {}), single(kRoomy, {.bundled_blocks = 0});
  const TreePlan* bundled = bundling.plan(share(sharing, c));
  const TreePlan* apart = single.plan(share(sharing, c));
  ASSERT_TRUE(bundled != nullptr && apart != nullptr);
  expect_sound(c, *bundled, TreeCost{}.heads_per_kv);
  EXPECT_LE(bundled->n_items + 48, apart->n_items);
}

// Eight sequences on one prefix: with 132 workers and 8 key heads the work is cut into at least a full wave.
TEST(CudaPlan, FillsTheWorkers) {
  std::vector<Path> paths = {{.length = 8192, .reads = false}};
  for (int i = 0; i < 8; ++i) paths.push_back({.parent = 0, .shared = 8192, .length = 8192 + 256});
  const AttentionCase c = test::make_case("shared", paths, kBlockSize, {}, 1);
  SharePlanner sharing({});
  TreePlanner planner(kRoomy, {});
  const TreePlan* plan = planner.plan(share(sharing, c));
  ASSERT_NE(plan, nullptr);
  EXPECT_GE(plan->n_items * 8, 132 * 4 / 5);
  EXPECT_EQ(plan->merge_rows.size(), 8U);
}

// A prompt's bands are items enough for all workers: cut, its rows would have partial states for nothing.
TEST(CudaPlan, LeavesLongRunsWhole) {
  const AttentionCase c =
      test::make_case("prompt", std::vector<Path>{{.length = 4096, .n_rows = 2048}}, kBlockSize, {}, 1);
  SharePlanner sharing({});
  TreePlanner planner(kRoomy, {});
  const TreePlan* plan = planner.plan(share(sharing, c));
  ASSERT_NE(plan, nullptr);
  expect_sound(c, *plan, TreeCost{}.heads_per_kv);
  EXPECT_EQ(plan->n_slots, 0);
}

}  // namespace
}  // namespace coppice::attention::cuda
