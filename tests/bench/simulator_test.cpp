// The simulator that coppice's cache is compared with: small traces against an exhaustive search, and by hand.
#include "traces/simulator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <set>

#include "traces/replay.h"

namespace coppice::bench {
namespace {

using Set = std::uint32_t;  // of ids, one bit each

Trace make_trace(std::vector<std::vector<std::int32_t>> requests) {
  Trace trace;
  for (auto& ids : requests) {
    trace.blocks += static_cast<std::int64_t>(ids.size());
    for (const std::int32_t id : ids) trace.distinct = std::max(trace.distinct, id + 1);
    trace.requests.push_back({std::move(ids)});
  }
  return trace;
}

/// A random tree of `ids` blocks, and requests for paths from its root.
Trace random_trace(int ids, int requests, std::mt19937_64& rng) {
  std::vector<std::int32_t> parents;
  for (std::int32_t id = 0; id < ids; ++id) {
    parents.push_back(static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(id + 1)) - 1);
  }
  std::vector<std::vector<std::int32_t>> paths;
  for (int r = 0; r < requests; ++r) {
    std::vector<std::int32_t> path;
    for (auto id = static_cast<std::int32_t>(rng() % static_cast<std::uint64_t>(ids)); id >= 0;) {
      path.insert(path.begin(), id);
      id = parents[static_cast<std::size_t>(id)];
    }
    paths.push_back(path);
  }
  return make_trace(paths);
}

std::int32_t longest(const Trace& trace) {
  std::size_t n = 0;
  for (const TraceRequest& r : trace.requests) n = std::max(n, r.ids.size());
  return static_cast<std::int32_t>(n);
}

/// The most blocks that any choice of victims serves: every set that could be kept after every request. Sets that are
/// not closed under prefixes are tried too: they serve their unbroken prefixes only.
std::int64_t search_optimum(const Trace& trace, std::int32_t budget) {
  std::map<Set, std::int64_t> reached = {{0, 0}};
  for (const TraceRequest& request : trace.requests) {
    Set path = 0;
    for (const std::int32_t id : request.ids) path |= Set{1} << id;
    std::map<Set, std::int64_t> next;
    for (const auto& [kept, served] : reached) {
      std::int64_t hits = 0;
      while (hits < static_cast<std::int64_t>(request.ids.size()) &&
             (kept >> request.ids[static_cast<std::size_t>(hits)] & 1U) != 0) {
        ++hits;
      }
      const Set others = kept & ~path;
      for (Set some = others;; some = (some - 1) & others) {
        if (std::popcount(some | path) <= budget) {
          auto& best = next[some | path];
          best = std::max(best, served + hits);
        }
        if (some == 0) break;
      }
    }
    reached = std::move(next);
  }
  std::int64_t best = 0;
  for (const auto& [kept, served] : reached) best = std::max(best, served);
  return best;
}

TEST(SimulatorTest, NoChoiceOfVictimsServesMoreThanTheOptimum) {
  const char* given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  std::cout << "COPPICE_SEED=" << seed << '\n';
  std::mt19937_64 rng(seed);
  int lru_lost = 0;
  for (int round = 0; round < 300; ++round) {
    const Trace trace = random_trace(9, 12, rng);
    const auto budget = longest(trace) + static_cast<std::int32_t>(rng() % 3);
    const std::int64_t best = search_optimum(trace, budget);
    ASSERT_EQ(simulate(trace, budget, Rule::kOptimum), best) << "round " << round;
    const std::int64_t lru = simulate(trace, budget, Rule::kLru);
    ASSERT_LE(lru, best);
    lru_lost += lru < best ? 1 : 0;
  }
  EXPECT_GT(lru_lost, 30) << "the traces are too easy to tell anything";
}

//   0 - 1 - 2      4 blocks fit: 3 - 4 takes the room of 2, the leaf used longest ago; 5 that of 1;
//   3 - 4          then 2 and 1 are gone
TEST(SimulatorTest, LruEvictsTheLeafUsedLongestAgo) {
  EXPECT_EQ(simulate(make_trace({{0, 1, 2}, {3, 4}, {0, 1, 2}}), 4, Rule::kLru), 2);
  EXPECT_EQ(simulate(make_trace({{0, 1, 2}, {3, 4}, {5}, {0, 1, 2}}), 4, Rule::kLru), 1);
  EXPECT_EQ(simulate(make_trace({{0, 1, 2}, {0, 1, 2}}), 2, Rule::kLru), 2) << "what fits of a long prompt is kept";
}

TEST(SimulatorTest, WithRoomForAllOnlyFirstUsesAreMissed) {
  std::mt19937_64 rng(1);
  const Trace trace = random_trace(20, 60, rng);
  std::set<std::int32_t> used;
  for (const TraceRequest& r : trace.requests) used.insert(r.ids.begin(), r.ids.end());
  const std::int64_t all = trace.blocks - static_cast<std::int64_t>(used.size());
  EXPECT_EQ(simulate(trace, trace.distinct, Rule::kLru), all);
  EXPECT_EQ(simulate(trace, trace.distinct, Rule::kOptimum), all);
}

// The last token of a prompt is never taken from the cache, so a prompt that was there wholly lacks one.
TEST(ReplayTest, TheRealCacheServesWhatTheSimulatorSays) {
  const Trace trace = make_trace({{0, 1, 2}, {0, 1, 2}, {0, 3}, {4}, {0, 1, 2, 5}});
  const Replayed got = replay(trace, trace.distinct + 1, 32);
  EXPECT_EQ(got.prompt_tokens, trace.blocks * kTraceBlock);
  EXPECT_EQ(got.cached_tokens, simulate(trace, trace.distinct, Rule::kLru) * kTraceBlock - 1);
  EXPECT_EQ(got.refused, 0);
  EXPECT_EQ(got.evictions, 0);
  EXPECT_EQ(replay(trace, 2, 32).refused, 4) << "all but one fill the pool: no growth and fork block is left";
}

// A disk with room for all: what the pool evicts is found again, if it goes there.
TEST(ReplayTest, ASecondTierServesWhatThePoolHasNoRoomFor) {
  std::vector<std::vector<std::int32_t>> prompts;
  for (int round = 0; round < 3; ++round) {
    for (std::int32_t i = 0; i < 6; ++i) prompts.push_back({3 * i, 3 * i + 1, 3 * i + 2});
  }
  const Trace trace = make_trace(prompts);
  EXPECT_EQ(replay(trace, 5, 32).cached_tokens, 0) << "each prompt takes the room of the one before";
  const Replayed all = replay(trace, 5, 32, Beside{.budget = trace.distinct, .all_evicted = true});
  EXPECT_EQ(all.refused, 0);
  EXPECT_GE(all.cached_tokens, 12 * (3 * kTraceBlock - 32) * 9 / 10) << "two rounds, but each prompt's last block";
  EXPECT_EQ(all.cached_tokens, all.loaded_tokens);
  EXPECT_LE(all.stored_tokens, std::int64_t{trace.distinct} * kTraceBlock);
  const Replayed small = replay(trace, 5, 32, Beside{.budget = 5, .all_evicted = true});
  EXPECT_LT(small.cached_tokens, all.cached_tokens / 2) << "a small disk is as full as the pool";
  const Replayed twice = replay(trace, 5, 32, Beside{.budget = trace.distinct});
  EXPECT_GT(twice.cached_tokens, 0) << "the second round is the second use, though the pool had lost the first";
  EXPECT_LT(twice.cached_tokens, all.cached_tokens) << "which is found in the third";
}

}  // namespace
}  // namespace coppice::bench
