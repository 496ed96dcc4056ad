// SharePlan against a model that asks the tables about each (row, token) pair. COPPICE_SEED=n replays a run.
#include "attention/plan/share_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "support/attention_cases.h"

namespace coppice::attention {
namespace {

using test::AttentionCase;
using test::CaseSequence;

/// Each distinct visible block: its table index and the sequences that see it.
struct BlockReaders {
  std::int64_t index = 0;
  std::vector<int> sequences;
};

std::map<kv::BlockId, BlockReaders> readers_of(const AttentionCase& c) {
  std::map<kv::BlockId, BlockReaders> all;
  for (std::size_t s = 0; s < c.sequences.size(); ++s) {
    const CaseSequence& seq = c.sequences[s];
    const std::int64_t begin = c.group.first_visible(seq.first_position) / c.block_size;
    for (std::int64_t b = begin; b * c.block_size < seq.length(); ++b) {
      BlockReaders& r = all[seq.table[static_cast<std::size_t>(b)]];
      r.index = b;
      r.sequences.push_back(static_cast<int>(s));
    }
  }
  return all;
}

/// Invariants 1 and 3: what each row sees, slot by slot.
std::string check_rows(const AttentionCase& c, const SharePlan& plan, const std::map<kv::BlockId, BlockReaders>& all) {
  const std::vector<SequenceRows> rows = c.rows();
  std::vector<std::size_t> sequence_of;
  for (std::size_t s = 0; s < rows.size(); ++s) sequence_of.insert(sequence_of.end(), std::size_t(rows[s].n_rows), s);
  if (plan.n_rows != c.n_rows()) return fmt::format("{} rows instead of {}", plan.n_rows, c.n_rows());
  std::vector<std::int64_t> seen(sequence_of.size(), 0);
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    const auto blocks = plan.blocks_of(plan.runs[r]);
    const std::int64_t size = std::ssize(blocks) * c.block_size;
    const std::int64_t first = all.at(blocks[0]).index * c.block_size;
    std::int32_t last = -1;
    for (const RowInterval& i : plan.rows_of(plan.runs[r])) {
      const std::string where = fmt::format("run {}, row {} [{}, {}): ", r, i.row, i.lo, i.hi);
      if (i.row <= last || i.row >= plan.n_rows) return where + "rows don't ascend";
      if (i.lo < 0 || i.lo >= i.hi || i.hi > size) return where + "not inside the run";
      last = i.row;
      const SequenceRows& s = rows[sequence_of[static_cast<std::size_t>(i.row)]];
      const std::int64_t position = s.first_position + (i.row - s.first_row);
      for (std::int64_t t = i.lo; t < i.hi; ++t) {
        const std::int64_t p = first + t;
        if (p >= c.group.end_visible(position, s.both_ways) || p < c.group.first_visible(position))
          return where + fmt::format("{} is hidden", p);
        const kv::Slot slot =
            kv::Slot{blocks[static_cast<std::size_t>(t / c.block_size)]} * c.block_size + t % c.block_size;
        if (slot != s.table.slot(p)) return where + fmt::format("not the slot of position {}", p);
      }
      seen[static_cast<std::size_t>(i.row)] += i.hi - i.lo;  // no pair twice: a block is in one run only (check_runs)
    }
  }
  for (std::size_t row = 0; row < sequence_of.size(); ++row) {
    const SequenceRows& s = rows[sequence_of[row]];
    const std::int64_t position = s.first_position + (static_cast<std::int64_t>(row) - s.first_row);
    const std::int64_t visible = c.group.end_visible(position, s.both_ways) - c.group.first_visible(position);
    if (seen[row] != visible) return fmt::format("row {} sees {} tokens of {}", row, seen[row], visible);
  }
  return {};
}

/// Invariants 2, 4 (the order) and 5.
std::string check_runs(const AttentionCase& c, const SharePlan& plan, const std::map<kv::BlockId, BlockReaders>& all) {
  if (plan.block_size != c.block_size) return "block size";
  if (plan.blocks.size() != all.size()) return fmt::format("{} blocks of {}", plan.blocks.size(), all.size());
  std::size_t expected = 0;
  std::set<std::pair<std::int64_t, std::vector<int>>> places;
  for (const auto& [id, r] : all) places.emplace(r.index, r.sequences);
  for (const auto& [id, r] : all) expected += places.contains({r.index - 1, r.sequences}) ? 0 : 1;
  if (plan.runs.size() != expected) return fmt::format("{} runs instead of {}", plan.runs.size(), expected);

  std::set<kv::BlockId> met;
  std::int32_t next_block = 0, next_row = 0;
  std::pair<int, std::int64_t> last = {-1, -1};
  for (std::size_t r = 0; r < plan.runs.size(); ++r) {
    const Run& run = plan.runs[r];
    if (run.first_block != next_block || run.first_row != next_row || run.n_blocks < 1 || run.n_rows < 1) {
      return fmt::format("run {} doesn't follow the one before", r);
    }
    next_block += run.n_blocks;
    next_row += run.n_rows;
    const auto blocks = plan.blocks_of(run);
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b] == kv::kNullBlock || !met.insert(blocks[b]).second) return fmt::format("run {}: {}", r, blocks[b]);
      const BlockReaders& readers = all.at(blocks[b]);
      if (readers.index != all.at(blocks[0]).index + static_cast<std::int64_t>(b)) return fmt::format("run {}: gap", r);
      if (readers.sequences != all.at(blocks[0]).sequences) return fmt::format("run {}: readers differ", r);
    }
    const std::pair place{all.at(blocks[0]).sequences[0], all.at(blocks[0]).index};
    if (place <= last) return fmt::format("run {} is out of order", r);
    last = place;
  }
  if (next_block != std::ssize(plan.blocks) || next_row != std::ssize(plan.rows)) return "more than the runs hold";
  return {};
}

std::string check(const AttentionCase& c, const SharePlan& plan) {
  const auto all = readers_of(c);
  std::string failure = check_runs(c, plan, all);
  return failure.empty() ? check_rows(c, plan, all) : failure;
}

std::string describe(const AttentionCase& c) {
  std::string text =
      fmt::format("block size {}, window {}{}\n", c.block_size, c.group.window, c.group.chunked ? " in chunks" : "");
  for (const CaseSequence& s : c.sequences) {
    text += fmt::format("  {} rows from {}:", s.n_rows, s.first_position);
    for (const kv::BlockId id : s.table) text += fmt::format(" {}", id);
    text += "\n";
  }
  return text;
}

std::vector<RowInterval> rows_of(const SharePlan& plan, std::size_t run) {
  const auto rows = plan.rows_of(plan.runs.at(run));
  return {rows.begin(), rows.end()};
}

bool same(const SharePlan& a, const SharePlan& b) {
  return a.block_size == b.block_size && a.n_rows == b.n_rows && a.blocks == b.blocks && a.runs == b.runs &&
         a.rows == b.rows;
}

TEST(SharePlanTest, NestedGroups) {
  AttentionCase c{.name = "", .block_size = 8, .n_blocks = 100};
  c.sequences = {{17, 1, {50, 3, 7}}, {18, 1, {50, 3, 8}}, {12, 1, {50, 9}}, {5, 2, {60}}};
  SharePlanner planner(c.group);
  const SharePlan& plan = planner.plan(c.rows());
  EXPECT_EQ(plan.blocks, (std::vector<kv::BlockId>{50, 3, 7, 8, 9, 60}));
  ASSERT_EQ(plan.runs.size(), 6U);
  EXPECT_EQ(rows_of(plan, 0), (std::vector<RowInterval>{{0, 0, 8}, {1, 0, 8}, {2, 0, 8}}));
  EXPECT_EQ(rows_of(plan, 1), (std::vector<RowInterval>{{0, 0, 8}, {1, 0, 8}}));
  EXPECT_EQ(rows_of(plan, 2), (std::vector<RowInterval>{{0, 0, 2}}));
  EXPECT_EQ(rows_of(plan, 3), (std::vector<RowInterval>{{1, 0, 3}}));
  EXPECT_EQ(rows_of(plan, 4), (std::vector<RowInterval>{{2, 0, 5}}));
  EXPECT_EQ(rows_of(plan, 5), (std::vector<RowInterval>{{3, 0, 6}, {4, 0, 7}}));
}

TEST(SharePlanTest, APartlyFilledBlockIsSharedAsFarAsEachRowSees) {
  AttentionCase c{.name = "", .block_size = 8, .n_blocks = 100};
  c.sequences = {{11, 1, {4, 5}}, {9, 1, {4, 5}}, {20, 1, {4, 5, 6}}};
  SharePlanner planner(c.group);
  const SharePlan& plan = planner.plan(c.rows());
  ASSERT_EQ(plan.runs.size(), 2U);
  EXPECT_EQ(rows_of(plan, 0), (std::vector<RowInterval>{{0, 0, 12}, {1, 0, 10}, {2, 0, 16}}));
  EXPECT_EQ(rows_of(plan, 1), (std::vector<RowInterval>{{2, 0, 5}}));
}

TEST(SharePlanTest, OnlyWhatAWindowShowsCounts) {
  AttentionCase c{.name = "", .group = {.kind = kv::GroupKind::kSliding, .window = 10}, .block_size = 8, .n_blocks = 9};
  // Row 0 sees [16, 26), row 1 [14, 24): the second still needs entry 1, the first doesn't, though it has it.
  c.sequences = {{25, 1, {kv::kNullBlock, 2, 3, 4}}, {23, 1, {1, 2, 3}}};
  SharePlanner planner(c.group);
  const SharePlan& plan = planner.plan(c.rows());
  EXPECT_EQ(plan.blocks, (std::vector<kv::BlockId>{3, 4, 2}));
  ASSERT_EQ(plan.runs.size(), 3U);
  EXPECT_EQ(rows_of(plan, 0), (std::vector<RowInterval>{{0, 0, 8}, {1, 0, 8}}));
  EXPECT_EQ(rows_of(plan, 1), (std::vector<RowInterval>{{0, 0, 2}}));
  EXPECT_EQ(rows_of(plan, 2), (std::vector<RowInterval>{{1, 6, 8}}));
}

TEST(SharePlanTest, AnEmptyStepIsAnEmptyPlan) {
  SharePlanner planner(kv::GroupSpec{});
  EXPECT_TRUE(planner.plan(test::named_case("8 unrelated at 400").rows()).runs.size() == 8);
  const SharePlan& plan = planner.plan({});
  EXPECT_EQ(plan.n_rows, 0);
  EXPECT_TRUE(plan.runs.empty() && plan.rows.empty() && plan.blocks.empty());
}

TEST(SharePlanTest, AnotherBlockSizeIsAnotherPlan) {
  AttentionCase c{.name = "", .block_size = 8, .n_blocks = 100};
  c.sequences = {{5, 2, {4}}};
  SharePlanner planner(c.group);
  planner.plan(c.rows());
  c.block_size = 16;
  EXPECT_EQ(planner.plan(c.rows()).block_size, 16);
  EXPECT_EQ(planner.rebuilt(), 2);
}

TEST(SharePlanTest, NamedCases) {
  for (const int block_size : {8, 16, 32, 64}) {
    for (const AttentionCase& c : test::named_cases(block_size)) {
      SharePlanner planner(c.group);
      ASSERT_EQ(check(c, planner.plan(c.rows())), "") << c.name;
    }
  }
  const AttentionCase c = test::named_case("8+8 on two branches, 3 sharing 200 more", 8);
  SharePlanner planner(c.group);
  std::multiset<int> shared;
  for (const attention::Run& run : planner.plan(c.rows()).runs) {
    if (run.n_rows > 1) shared.insert(run.n_rows);
  }
  EXPECT_EQ(shared, (std::multiset<int>{16, 8, 8, 3}));
}

/// By the definition: a query sees what lies before it, and all with which it sees both ways.
TEST(SharePlanTest, RowsThatSeeEachOtherBothWays) {
  const std::vector<kv::BothWays> both_ways = {{3, 4}, {5, 17}, {17, 20}};
  for (std::int64_t query = 0; query < 25; ++query) {
    const std::int64_t end = kv::end_visible(query, both_ways);
    for (std::int64_t key = 0; key < 25; ++key) {
      const bool together = std::ranges::any_of(both_ways, [&](const kv::BothWays& rows) {
        return std::min(query, key) >= rows.begin && std::max(query, key) < rows.end;
      });
      ASSERT_EQ(key < end, key <= query || together) << key << " of " << query;
    }
  }
}

/// By the definition: a query sees the keys of its own chunk up to itself.
TEST(SharePlanTest, ChunksHideWhatLiesBeforeThem) {
  const kv::GroupSpec group{.kind = kv::GroupKind::kSliding, .window = 6, .layers = {}, .chunked = true};
  for (std::int64_t query = 0; query < 40; ++query) {
    for (std::int64_t key = 0; key <= query; ++key) {
      ASSERT_EQ(key >= group.first_visible(query), key / 6 == query / 6) << key << " of " << query;
    }
  }
  AttentionCase c{.name = "", .group = group, .block_size = 4, .n_blocks = 9};
  c.sequences = {{10, 4, {kv::kNullBlock, 5, 3, 7}}};  // positions 10 to 13, whose chunks begin at 6 and 12
  SharePlanner planner(group);
  const SharePlan& plan = planner.plan(c.rows());
  EXPECT_EQ(plan.blocks, (std::vector<kv::BlockId>{5, 3, 7}));
  ASSERT_EQ(plan.runs.size(), 1U);
  EXPECT_EQ(rows_of(plan, 0), (std::vector<RowInterval>{{0, 2, 7}, {1, 2, 8}, {2, 8, 9}, {3, 8, 10}}));
}

TEST(SharePlanTest, RandomTrees) {
  std::mt19937_64 random(test::test_seed());
  std::int64_t runs = 0, shared = 0;
  for (int i = 0; i < 24'000; ++i) {
    test::RandomShape shape{.sliding = i % 2 == 1, .both_ways = i % 5 == 0};
    if (i % 100 == 0) shape = {.max_sequences = 20, .max_length = 1500, .max_chunk = 300, .sliding = i % 200 == 0};
    const AttentionCase c = test::random_case(shape, random);
    SharePlanner planner(c.group);
    const SharePlan& plan = planner.plan(c.rows());
    ASSERT_EQ(check(c, plan), "") << "case " << i << ": " << describe(c);
    runs += std::ssize(plan.runs);
    shared += std::ranges::count_if(plan.runs, [](const attention::Run& r) { return r.n_rows > 1; });

    if (i % 4 != 0) continue;
    SharePlanner other(c.group);
    const SharePlan& again = other.plan(test::shuffled(c, random).rows());
    ASSERT_EQ(plan.runs, again.runs) << "case " << i << ": " << describe(c);
    ASSERT_EQ(plan.rows, again.rows) << "case " << i << ": " << describe(c);
  }
  fmt::print("{} runs, {} of them of several rows\n", runs, shared);
  EXPECT_GE(shared, runs / 5);
}

/// A tree that lives: sequences decode, cross block borders, join, fork and end; freed ids are used again at once.
class LivingTree {
 public:
  LivingTree(bool sliding, std::mt19937_64& random) : random_(random) {
    tree_.block_size = 8 << pick(0, 2);
    tree_.n_blocks = 2000;
    if (sliding) tree_.group = {.kind = kv::GroupKind::kSliding, .window = pick(1, 60), .layers = {}};
    tree_.group.chunked = sliding && chance(40);
  }

  const AttentionCase& tree() const { return tree_; }

  void step() {
    for (CaseSequence& s : tree_.sequences) advance(s, chance(3) ? pick(1, 20) : 1);
    if (tree_.sequences.empty() || chance(8)) join();
    if (tree_.sequences.size() > 1 && chance(8)) {
      tree_.sequences.erase(tree_.sequences.begin() + pick(0, static_cast<int>(tree_.sequences.size()) - 1));
    }
    if (chance(3)) std::ranges::shuffle(tree_.sequences, random_);
    if (chance(5)) replace_entry();
    if (chance(3)) tree_.sequences = test::shuffled(tree_, random_).sequences;
  }

 private:
  int pick(int low, int high) { return low + static_cast<int>(random_() % static_cast<std::uint64_t>(high - low + 1)); }
  bool chance(int percent) { return pick(0, 99) < percent; }

  kv::BlockId unused() {
    std::set<kv::BlockId> used = {kv::kNullBlock};
    for (const CaseSequence& s : tree_.sequences) used.insert(s.table.begin(), s.table.end());
    kv::BlockId id = 1;
    while (used.contains(id)) ++id;
    return id;
  }

  void advance(CaseSequence& s, int n_rows) {
    s.first_position = static_cast<std::int32_t>(s.length());
    s.n_rows = n_rows;
    while (std::ssize(s.table) * tree_.block_size < s.length()) s.table.push_back(unused());
    const std::int64_t dropped = tree_.group.first_visible(s.first_position) / tree_.block_size;
    if (chance(50)) std::fill_n(s.table.begin(), dropped, kv::kNullBlock);
  }

  /// A new sequence, perhaps on a prefix of another that has dropped nothing of it.
  void join() {
    CaseSequence s{.first_position = pick(0, 80)};
    if (!tree_.sequences.empty() && chance(80)) {
      const CaseSequence& parent = tree_.sequences[static_cast<std::size_t>(pick(0, std::ssize(tree_.sequences) - 1))];
      s = parent;
      if (chance(50)) {
        s.first_position = pick(0, parent.first_position);
        s.table.resize(static_cast<std::size_t>((s.length() + tree_.block_size - 1) / tree_.block_size));
      }
    }
    for (kv::BlockId& id : s.table) {
      if (id == kv::kNullBlock &&
          &id - s.table.data() >= tree_.group.first_visible(s.first_position) / tree_.block_size) {
        return;
      }
    }
    tree_.sequences.push_back(std::move(s));
    CaseSequence& joined = tree_.sequences.back();
    while (std::ssize(joined.table) * tree_.block_size < joined.length()) joined.table.push_back(unused());
  }

  /// As a fork does, or as a mistaken caller might: another block in the same place, at the same length.
  void replace_entry() {
    CaseSequence& s = tree_.sequences[static_cast<std::size_t>(pick(0, std::ssize(tree_.sequences) - 1))];
    const int at = chance(70) ? static_cast<int>(s.table.size()) - 1 : pick(0, std::ssize(s.table) - 1);
    if (s.table[static_cast<std::size_t>(at)] != kv::kNullBlock) s.table[static_cast<std::size_t>(at)] = unused();
  }

  std::mt19937_64& random_;
  AttentionCase tree_;
};

TEST(SharePlanTest, ARefreshedPlanEqualsANewOne) {
  std::mt19937_64 random(test::test_seed());
  std::int64_t refreshed = 0, rebuilt = 0;
  for (int life = 0; life < 60; ++life) {
    LivingTree living(life % 2 == 1, random);
    SharePlanner kept(living.tree().group);
    for (int step = 0; step < 200; ++step) {
      living.step();
      const AttentionCase& c = living.tree();
      SharePlanner fresh(c.group);
      const SharePlan& plan = kept.plan(c.rows());
      ASSERT_TRUE(same(plan, fresh.plan(c.rows()))) << "life " << life << ", step " << step << ": " << describe(c);
      ASSERT_EQ(check(c, plan), "") << "life " << life << ", step " << step << ": " << describe(c);
    }
    refreshed += kept.refreshed();
    rebuilt += kept.rebuilt();
  }
  fmt::print("{} steps refreshed, {} rebuilt\n", refreshed, rebuilt);
  EXPECT_GE(refreshed, 2000);
  EXPECT_GE(rebuilt, 2000);
}

TEST(SharePlanTest, DecodingRebuildsOnlyAtBlockBorders) {
  AttentionCase c = test::named_case("16 decodes on a 2,048 prefix", 32);  // all at 2,067
  SharePlanner planner(c.group);
  for (int step = 0; step < 32; ++step) {
    planner.plan(c.rows());
    for (CaseSequence& s : c.sequences) {
      ++s.first_position;
      if (s.length() > std::ssize(s.table) * 32) s.table.push_back(c.n_blocks++);
    }
  }
  EXPECT_EQ(planner.rebuilt(), 2);
  EXPECT_EQ(planner.refreshed(), 30);
}

}  // namespace
}  // namespace coppice::attention
