// Schedules of random and of named plans: the header's invariants, how even the workers' loads are, and the attention
// that the tiles add up to. COPPICE_SEED=n replays a run.
#include "attention/plan/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>

#include "attention/reference.h"
#include "support/attention_cases.h"

namespace {
std::size_t allocations = 0;  // of this program: steps in the steady state must make none
}
void* operator new(std::size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept {
  std::free(p);
}
void operator delete(void* p, std::size_t) noexcept {
  std::free(p);
}

namespace coppice::attention {
namespace {

using test::AttentionCase;

struct Slots {
  std::int32_t from = 0, to = 0;  ///< counted from the run's first slot
};

Slots slots_of(const SharePlan& plan, const Tile& t) {
  return {t.run_offset, t.run_offset + t.n_blocks * plan.block_size};
}

std::span<const RowInterval> rows_of(const SharePlan& plan, const Tile& t) {
  return std::span(plan.rows).subspan(static_cast<std::size_t>(t.first_row), static_cast<std::size_t>(t.n_rows));
}

double cost_of(const SharePlan& plan, const Tile& tile, const CostModel& cost) {
  const Slots slots = slots_of(plan, tile);
  double seen = 0.0;
  for (const RowInterval& r : rows_of(plan, tile)) {
    seen += std::max(0, std::min(r.hi, slots.to) - std::max(r.lo, slots.from));
  }
  return cost.overhead + cost.block * tile.n_blocks + cost.row * seen / plan.block_size;
}

/// Invariant 1, and that each tile lies inside a run.
std::string check_cover(const SharePlan& plan, const Schedule& s, const CostModel& cost) {
  std::vector<std::vector<int>> covered;  // [runs][rows * blocks]
  for (const Run& r : plan.runs) covered.emplace_back(static_cast<std::size_t>(r.n_rows) * std::size_t(r.n_blocks), 0);
  for (std::size_t i = 0; i < s.tiles.size(); ++i) {
    const Tile& t = s.tiles[i];
    const auto run = std::ranges::find_if(plan.runs, [&](const Run& r) {
      return t.first_block >= r.first_block && t.first_block < r.first_block + r.n_blocks;
    });
    if (run == plan.runs.end() || t.n_blocks < 1 || t.first_block + t.n_blocks > run->first_block + run->n_blocks ||
        t.n_rows < 1 || t.first_row < run->first_row || t.first_row + t.n_rows > run->first_row + run->n_rows) {
      return fmt::format("tile {} is not inside a run", i);
    }
    if (t.n_rows > cost.max_tile_rows) return fmt::format("tile {} has {} rows", i, t.n_rows);
    const int block = t.first_block - run->first_block, row = t.first_row - run->first_row;
    if (t.run_offset != block * plan.block_size) return fmt::format("tile {}: run_offset {}", i, t.run_offset);
    const Slots slots = slots_of(plan, t);
    for (const RowInterval& r : {rows_of(plan, t).front(), rows_of(plan, t).back()}) {
      if (r.lo >= slots.to || r.hi <= slots.from) return fmt::format("tile {} begins or ends with a blind row", i);
    }
    auto& cells = covered[static_cast<std::size_t>(run - plan.runs.begin())];
    for (int r = row; r < row + t.n_rows; ++r) {
      for (int b = block; b < block + t.n_blocks; ++b)
        ++cells[std::size_t(r) * std::size_t(run->n_blocks) + std::size_t(b)];
    }
  }
  for (std::size_t run = 0; run < plan.runs.size(); ++run) {
    const auto rows = plan.rows_of(plan.runs[run]);
    const int n_blocks = plan.runs[run].n_blocks;
    for (std::size_t cell = 0; cell < covered[run].size(); ++cell) {
      const RowInterval& r = rows[cell / std::size_t(n_blocks)];
      const int from = static_cast<int>(cell % std::size_t(n_blocks)) * plan.block_size;
      const bool sees = r.lo < from + plan.block_size && from < r.hi;
      if (covered[run][cell] > 1 || (sees && covered[run][cell] == 0)) {
        return fmt::format("run {}, cell {} is covered {} times", run, cell, covered[run][cell]);
      }
    }
  }
  return {};
}

/// Invariants 3 and 4.
std::string check_partials(const SharePlan& plan, const Schedule& s) {
  std::vector<int> row_of(static_cast<std::size_t>(s.n_partials), -1);
  for (const Tile& t : s.tiles) {
    const auto rows = rows_of(plan, t);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const auto partial = static_cast<std::size_t>(t.first_partial) + i;
      if (partial >= row_of.size() || row_of[partial] != -1) return fmt::format("partial {} written twice", partial);
      row_of[partial] = rows[i].row;
    }
  }
  if (std::ranges::find(row_of, -1) != row_of.end()) return "a partial that nobody writes";
  if (std::ssize(s.first_partial_of_row) != plan.n_rows + 1 || s.partials.size() != row_of.size()) return "list sizes";
  std::size_t listed = 0;
  for (int row = 0; row < plan.n_rows; ++row) {
    const auto mine = s.partials_of(row);
    if (mine.empty()) return fmt::format("row {} has no partial", row);
    listed += mine.size();
    for (const std::int32_t p : mine) {
      if (row_of.at(static_cast<std::size_t>(p)) != row)
        return fmt::format("row {} lists another's partial {}", row, p);
      row_of[static_cast<std::size_t>(p)] = -1;
    }
  }
  return listed == row_of.size() ? "" : "partials that no row lists";
}

/// Invariant 2, the jobs' order and their costs.
std::string check_jobs(const SharePlan& plan, const Schedule& s, const CostModel& cost) {
  std::vector<int> jobs_of(s.tiles.size(), 0);
  double last = std::numeric_limits<double>::infinity();
  for (const Job& job : s.jobs) {
    if (job.n_tiles < 1) return "an empty job";
    if (job.cost > last) return "a cheaper job comes first";
    last = job.cost;
    double sum = 0.0;
    for (int t = job.first_tile; t < job.first_tile + job.n_tiles; ++t) {
      ++jobs_of.at(static_cast<std::size_t>(t));
      sum += cost_of(plan, s.tiles[static_cast<std::size_t>(t)], cost);
    }
    if (std::abs(sum - job.cost) > 1e-6 * sum) return fmt::format("a job costs {}, not {}", sum, job.cost);
  }
  return std::ranges::all_of(jobs_of, [](int n) { return n == 1; }) ? "" : "a tile is in no job, or in several";
}

std::string check(const SharePlan& plan, const Schedule& s, const CostModel& cost) {
  std::string failure = check_cover(plan, s, cost);
  if (failure.empty()) failure = check_partials(plan, s);
  if (failure.empty()) failure = check_jobs(plan, s, cost);
  return failure;
}

double total_cost(const Schedule& s) {
  return std::accumulate(s.jobs.begin(), s.jobs.end(), 0.0, [](double sum, const Job& j) { return sum + j.cost; });
}

/// The busiest worker's load over the mean, if each claims the next of a job's key heads as soon as it is free.
double imbalance(const Schedule& s, int n_workers, int n_kv_head = 1) {
  std::vector<double> loads(static_cast<std::size_t>(n_workers), 0.0);
  for (const Job& job : s.jobs) {
    for (int i = 0; i < n_kv_head; ++i) *std::ranges::min_element(loads) += job.cost / n_kv_head;
  }
  return std::ranges::max(loads) * n_workers / total_cost(s);
}

/// Blocks that tiles load, all together.
int loaded_blocks(const Schedule& s) {
  return std::accumulate(s.tiles.begin(), s.tiles.end(), 0, [](int n, const Tile& t) { return n + t.n_blocks; });
}

TEST(ScheduleTest, RandomTreesKeepTheInvariants) {
  std::mt19937_64 random(test::test_seed());
  Schedule schedule;  // kept: what the case before left behind must not matter
  std::int64_t split = 0;
  for (int i = 0; i < 6000; ++i) {
    test::RandomShape shape{.sliding = i % 2 == 1, .both_ways = i % 5 == 0};
    if (i % 50 == 0) shape = {.max_sequences = 20, .max_length = 3000, .max_chunk = 300, .sliding = i % 100 == 0};
    const AttentionCase c = test::random_case(shape, random);
    SharePlanner planner(c.group);
    const SharePlan& plan = planner.plan(c.rows());
    const CostModel cost{.block = 0.5 + static_cast<double>(random() % 10),
                         .row = 0.1 * static_cast<double>(random() % 20),
                         .overhead = static_cast<double>(random() % 10),
                         .partial = 0.1 * static_cast<double>(random() % 20),
                         .max_tile_rows = 1 + static_cast<int>(random() % 64)};
    make_schedule(plan, cost, schedule);
    ASSERT_EQ(check(plan, schedule, cost), "") << "case " << i;
    split += schedule.tiles.size() > plan.runs.size() ? 1 : 0;
  }
  EXPECT_GE(split, 1000);
}

TEST(ScheduleTest, LoadsAreEven) {
  const CostModel cost;
  for (const int block_size : {16, 32}) {
    for (const AttentionCase& c : test::named_cases(block_size)) {
      SharePlanner planner(c.group);
      const SharePlan& plan = planner.plan(c.rows());
      Schedule s;
      make_schedule(plan, cost, s);
      ASSERT_EQ(check(plan, s, cost), "") << c.name;
      for (const int n_workers : {1, 2, 4, 16}) {
        // What can't be split: one block under as many rows as a tile may have.
        int most_rows = 1;
        for (const attention::Run& r : plan.runs)
          most_rows = std::max(most_rows, std::min(r.n_rows, cost.max_tile_rows));
        const double atom = cost.overhead + cost.block + cost.row * most_rows;
        const double mean = total_cost(s) / n_workers;
        const bool big = mean >= 4 * atom;
        fmt::print(
            "{:48} {:2} workers: {:4} runs {:4} tiles {:4} jobs, mean {:8.0f} ({:6.1f} atoms), max/mean {:.3f}\n",
            c.name, n_workers, plan.runs.size(), s.tiles.size(), s.jobs.size(), mean, mean / atom,
            imbalance(s, n_workers, 3));
        if (big)
          EXPECT_LE(imbalance(s, n_workers, 3), n_workers <= 4 ? 1.25 : 1.6)
              << c.name << ", " << n_workers << " workers";
      }
    }
  }
}

/// There is work for some more than eight pieces: eight are better, for two, four and eight workers.
TEST(ScheduleTest, WorkersGetEquallyManyJobs) {
  const AttentionCase c = test::make_case("", std::vector<test::Path>{{.length = 2400}}, 32, {}, 1);
  SharePlanner planner(c.group);
  Schedule s;
  make_schedule(planner.plan(c.rows()), {}, s);
  EXPECT_EQ(s.jobs.size(), 8U);
  for (const int n : {2, 4, 8}) EXPECT_LE(imbalance(s, n), 1.1) << n;
}

TEST(ScheduleTest, FewWorkersGetFewerPieces) {
  const AttentionCase c = test::make_case("", std::vector<test::Path>{{.length = 2400}}, 32, {}, 1);
  SharePlanner planner(c.group);
  Schedule s;
  make_schedule(planner.plan(c.rows()), {.pieces = 4}, s);
  EXPECT_EQ(s.jobs.size(), 4U);
  EXPECT_LE(imbalance(s, 2), 1.1);
}

TEST(ScheduleTest, DecodingLoadsEachBlockOnce) {
  for (const AttentionCase& c : test::named_cases()) {
    if (c.n_rows() > 64 + 16) continue;  // chunks; the deep case has 16 rows on its prefix, 60 alone
    SharePlanner planner(c.group);
    const SharePlan& plan = planner.plan(c.rows());
    Schedule s;
    make_schedule(plan, {}, s);
    EXPECT_EQ(loaded_blocks(s), c.unique_blocks()) << c.name;
  }
}

TEST(ScheduleTest, ACausalChunksEarlyRowsLoadNoLaterBlocks) {
  const AttentionCase c = test::named_case("prefill 512 at depth 0");  // 16 blocks
  SharePlanner planner(c.group);
  Schedule s;
  make_schedule(planner.plan(c.rows()), {.overhead = 1e6}, s);
  ASSERT_EQ(s.tiles.size(), 8U);
  EXPECT_EQ(loaded_blocks(s), 2 + 4 + 6 + 8 + 10 + 12 + 14 + 16);
}

TEST(ScheduleTest, AWindowsLaterRowsLoadNoEarlierBlocks) {
  const kv::GroupSpec window{.kind = kv::GroupKind::kSliding, .window = 64};
  const AttentionCase c = test::make_case("", std::vector<test::Path>{{.length = 512, .n_rows = 512}}, 32, window, 1);
  SharePlanner planner(c.group);
  Schedule s;
  make_schedule(planner.plan(c.rows()), {.overhead = 1e6}, s);
  ASSERT_EQ(s.tiles.size(), 8U);
  EXPECT_EQ(loaded_blocks(s), 2 + 7 * 4);  // 64 rows see the two blocks that they are in and the two before
}

TEST(ScheduleTest, NothingIsSplitWithoutNeed) {
  for (const AttentionCase& c : test::named_cases()) {
    SharePlanner planner(c.group);
    const SharePlan& plan = planner.plan(c.rows());
    std::int64_t least = 0;
    for (const attention::Run& r : plan.runs) least += (r.n_rows + 63) / 64;
    Schedule s;
    make_schedule(plan, {}, s);
    EXPECT_LE(std::ssize(s.tiles), least + std::ssize(s.jobs) - 1) << c.name;
    EXPECT_GE(total_cost(s) / static_cast<double>(s.jobs.size()), 2 * CostModel{}.overhead) << c.name;
  }
  // 8 equal streams: cuts fall on the borders.
  AttentionCase c = test::named_case("8 unrelated at 400");
  SharePlanner planner(c.group);
  Schedule s;
  make_schedule(planner.plan(c.rows()), {}, s);
  EXPECT_EQ(s.tiles.size(), 8U);
  EXPECT_EQ(s.jobs.size(), 8U);
  // A short stream alone isn't worth a second worker.
  c.sequences = {{20, 1, {1}}};
  make_schedule(planner.plan(c.rows()), {}, s);
  EXPECT_EQ(s.tiles.size(), 1U);
  EXPECT_EQ(s.jobs.size(), 1U);
  make_schedule(planner.plan({}), {}, s);
  EXPECT_TRUE(s.tiles.empty() && s.jobs.empty() && s.partials.empty());
}

TEST(ScheduleTest, StepsInTheSteadyStateAllocateNothing) {
  AttentionCase c = test::named_case("8+8 on two branches, 3 sharing 200 more");
  for (auto& s : c.sequences) {  // room for 200 steps
    for (int i = 0; i < 8; ++i) s.table.push_back(c.n_blocks++);
  }
  SharePlanner planner(c.group);
  Schedule schedule;
  std::vector<SequenceRows> rows = c.rows();
  std::size_t before = 0;
  for (int step = 0; step < 200; ++step) {
    if (step == 100) before = allocations;  // everything has been rebuilt at least once by now
    for (SequenceRows& s : rows) ++s.first_position;
    make_schedule(planner.plan(rows), {}, schedule);
  }
  EXPECT_GT(planner.rebuilt(), 3);
  EXPECT_EQ(allocations, before);
}

/// Attention of one row and head over some keys, in double precision.
struct State {
  double max = -std::numeric_limits<double>::infinity(), sum = 0.0;
  std::vector<double> acc;

  void add(const State& part) {
    const double most = std::max(max, part.max);
    if (std::isinf(most)) return;  // both empty
    const double mine = std::exp(max - most), other = std::exp(part.max - most);
    max = most;
    sum = mine * sum + other * part.sum;
    for (std::size_t d = 0; d < acc.size(); ++d) acc[d] = mine * acc[d] + other * part.acc[d];
  }
};

/// Attention through tiles and partial states, one key at a time.
std::vector<float> attend_tiles(const AttentionCase& c, const SharePlan& plan, const Schedule& schedule,
                                const test::PoolData& pool, const std::vector<float>& q) {
  const auto dim = static_cast<std::size_t>(c.heads.head_dim), n_head = static_cast<std::size_t>(c.heads.n_head);
  std::vector<State> states(static_cast<std::size_t>(schedule.n_partials) * n_head, {.acc = std::vector<double>(dim)});
  for (const Tile& tile : schedule.tiles) {
    const Slots slots = slots_of(plan, tile);
    std::size_t partial = static_cast<std::size_t>(tile.first_partial) * n_head;
    for (const RowInterval& r : rows_of(plan, tile)) {
      for (std::size_t h = 0; h < n_head; ++h, ++partial) {
        const int kv_head = static_cast<int>(h) / c.heads.heads_per_kv();
        const float* query = q.data() + (static_cast<std::size_t>(r.row) * n_head + h) * dim;
        for (int t = std::max(r.lo, slots.from); t < std::min(r.hi, slots.to); ++t) {
          const auto block = static_cast<std::size_t>(tile.first_block + (t - slots.from) / c.block_size);
          const kv::Slot slot = kv::Slot{plan.blocks[block]} * c.block_size + t % c.block_size;
          const auto key = stored_head(c.heads, pool.view, pool.view.keys, slot, kv_head);
          double score = 0.0;
          for (std::size_t d = 0; d < dim; ++d) score += double{query[d]} * key[d];
          states[partial].add({.max = score * double{c.heads.scale},
                               .sum = 1.0,
                               .acc = stored_head(c.heads, pool.view, pool.view.values, slot, kv_head)});
        }
      }
    }
  }
  std::vector<float> out(q.size());
  for (int row = 0; row < plan.n_rows; ++row) {
    for (std::size_t h = 0; h < n_head; ++h) {
      State all{.acc = std::vector<double>(dim)};
      for (const std::int32_t p : schedule.partials_of(row)) all.add(states[static_cast<std::size_t>(p) * n_head + h]);
      const std::size_t at = (static_cast<std::size_t>(row) * n_head + h) * dim;
      for (std::size_t d = 0; d < dim; ++d) out[at + d] = static_cast<float>(all.acc[d] / all.sum);
    }
  }
  return out;
}

TEST(ScheduleTest, TilesAddUpToTheReference) {
  std::mt19937_64 random(test::test_seed());
  for (int i = 0; i < 60; ++i) {
    AttentionCase c = test::random_case({.max_sequences = 6, .max_length = 150, .sliding = i % 2 == 1}, random);
    c.heads = {.n_head = 4, .n_kv_head = 2, .head_dim = 8, .scale = 0.4F};
    const test::PoolData pool(c, random());
    const std::vector<float> q = test::make_queries(c, random());
    SharePlanner planner(c.group);
    const SharePlan& plan = planner.plan(c.rows());
    Schedule schedule;
    make_schedule(plan, {.overhead = 0.5, .max_tile_rows = 10}, schedule);
    std::vector<float> expected(q.size());
    attend_reference(c.heads, pool.view, c.group, c.rows(), q, expected);
    const std::vector<float> out = attend_tiles(c, plan, schedule, pool, q);
    for (std::size_t k = 0; k < out.size(); ++k) ASSERT_NEAR(out[k], expected[k], 1e-6) << "case " << i << ", " << k;
  }
}

}  // namespace
}  // namespace coppice::attention
