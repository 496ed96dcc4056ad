// The model-based random test: over 200,000 operations per block size against a trivial double, every count
// recomputed and every visible slot read back after each. COPPICE_SEED=n replays a run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>

#include "support/kv_random_driver.h"
#include "support/long_form.h"

namespace coppice::test {
namespace {

std::uint64_t make_seed() {
  if (const char* text = std::getenv("COPPICE_SEED")) return std::strtoull(text, nullptr, 10);
  return std::random_device{}();
}

class CacheRandomTest : public testing::TestWithParam<int> {};

TEST_P(CacheRandomTest, AgreesWithTheDouble) {
  const std::int64_t each = kSanitized ? 30'000 : long_form() ? 150'000 : 50'000;  // for each group set
  const std::int64_t enough = kSanitized ? 120 : long_form() ? 1'000 : 300;
  constexpr std::int64_t kQuietEpisodes = 10;  // every match in them is predicted exactly
  constexpr std::uint64_t kRounds = 5;
  const std::uint64_t seed = make_seed();
  fmt::print("COPPICE_SEED={}\n", seed);

  TransitionCounts met{};
  std::int64_t operations = 0, quiet_episodes = 0;
  const auto play = [&](const RandomRun& run) {
    const RandomReport report = run_random(run);
    ASSERT_EQ(report.failure, "");
    operations += report.operations;
    for (std::size_t t = 0; t < met.size(); ++t) met[t] += report.met[t];
    fmt::print("{:16} {:7} operations in {} episodes, {} of them without an eviction\n", to_text(run.groups),
               report.operations, report.episodes, report.quiet_episodes);
    quiet_episodes += report.quiet_episodes;
  };
  // A round meets those inside of pictures some hundred times; five rounds took a minute and a half for each block
  // size.
  const auto at_least = [&](std::size_t t) {
    constexpr std::array kRare = {Transition::kMediumHalved, Transition::kForkInMedium, Transition::kPreemptInMedium};
    return std::ranges::find(kRare, static_cast<Transition>(t)) != kRare.end() ? enough / 10 : enough;
  };
  const auto met_enough = [&] {
    for (std::size_t t = 0; t < met.size(); ++t)
      if (met[t] < at_least(t)) return false;
    return quiet_episodes >= kQuietEpisodes;
  };
  // What a round meets is chance: one nearly always meets enough, and further ones make up for what it lacked.
  for (std::uint64_t round = 0; round < kRounds && !met_enough(); ++round) {
    for (const Groups groups : {Groups::kFullAndRecurrent, Groups::kAllKinds, Groups::kFull, Groups::kFullAndSliding,
                                Groups::kFullAndFiveSliding, Groups::kFullAndChunked}) {
      const bool states = groups == Groups::kFullAndRecurrent || groups == Groups::kAllKinds;
      const bool plain = groups == Groups::kFull || groups == Groups::kFullAndChunked;
      RandomRun run{
          .seed = seed + round, .groups = groups, .block_size = GetParam(), .operations = plain ? each : each * 3 / 2};
      play(run);
      // Pools with room for one state and not for two, where a sequence goes on in the state that stood in the tree.
      run.operations = kSanitized ? each : 3 * each;
      run.narrow = true;
      if (states) play(run);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GE(operations, 200'000);
  EXPECT_GE(quiet_episodes, kQuietEpisodes) << "too few episodes in which every match is predicted exactly";
  for (std::size_t t = 0; t < met.size(); ++t) {
    const char* name = to_text(static_cast<Transition>(t));
    fmt::print("  {:24} {:7}\n", name, met[t]);
    EXPECT_GE(met[t], at_least(t)) << name << " was met too seldom";
  }
}

// Preempted between two pieces, half of one evicted, forked behind its first pieces, its end waited for: each a
// thousand times in the long form.
TEST_P(CacheRandomTest, MeetsWhatHappensInsideOfMedia) {
  constexpr std::array kWanted = {Transition::kCutBeforeMedium, Transition::kEndsInMedia,     Transition::kMediumHalved,
                                  Transition::kForkInMedium,    Transition::kPreemptInMedium, Transition::kTailShared};
  constexpr std::int64_t kOperations = 20'000;
  constexpr std::uint64_t kRounds = 40;
  const std::int64_t enough = kSanitized ? 30 : long_form() ? 1'000 : 100;
  const std::uint64_t seed = make_seed();
  fmt::print("COPPICE_SEED={}\n", seed);
  TransitionCounts met{};
  const auto count = [&met](Transition t) { return met[static_cast<std::size_t>(t)]; };
  const auto met_all = [&] { return std::ranges::all_of(kWanted, [&](Transition t) { return count(t) >= enough; }); };
  std::int64_t operations = 0;
  for (std::uint64_t round = 0; round < kRounds && !met_all(); ++round) {
    for (const Groups groups : kAllGroups) {
      const RandomReport report = run_random(
          {.seed = seed + round, .groups = groups, .block_size = GetParam(), .operations = kOperations, .dense = true});
      ASSERT_EQ(report.failure, "");
      operations += report.operations;
      for (std::size_t t = 0; t < met.size(); ++t) met[t] += report.met[t];
    }
  }
  fmt::print("  {} operations\n", operations);
  for (const Transition t : kWanted) {
    fmt::print("  {:24} {:7}\n", to_text(t), count(t));
    EXPECT_GE(count(t), enough) << to_text(t) << " was met too seldom";
  }
}

// Half of the pictures can't be cut, and have more rows than a step or a block usually has.
TEST_P(CacheRandomTest, NeverCutsAMediumOf300Rows) {
  const char* const wanted = std::getenv("COPPICE_OPERATIONS");
  const std::int64_t operations = wanted != nullptr ? std::strtoll(wanted, nullptr, 10) : kSanitized ? 6'000 : 60'000;
  const std::uint64_t seed = make_seed();
  fmt::print("COPPICE_SEED={}\n", seed);
  constexpr std::array kWanted = {Transition::kCutBeforeMedium, Transition::kEndsInMedia, Transition::kTailShared};
  TransitionCounts met{};
  const auto count = [&met](Transition t) { return met[static_cast<std::size_t>(t)]; };
  const auto met_all = [&] { return std::ranges::all_of(kWanted, [&](Transition t) { return count(t) > 0; }); };
  // As above: further rounds make up for what one lacked by chance.
  for (std::uint64_t round = 0; round < 10 && !met_all(); ++round) {
    for (const Groups groups : kAllGroups) {
      const RandomReport report = run_random({.seed = seed + round,
                                              .groups = groups,
                                              .block_size = GetParam(),
                                              .operations = operations / std::ssize(kAllGroups) + 1,
                                              .large = true});
      ASSERT_EQ(report.failure, "");
      for (std::size_t t = 0; t < met.size(); ++t) met[t] += report.met[t];
    }
  }
  for (const Transition t : kWanted) {
    fmt::print("  {:24} {:7}\n", to_text(t), count(t));
    EXPECT_GE(count(t), 1) << to_text(t);
  }
}

INSTANTIATE_TEST_SUITE_P(BlockSizes, CacheRandomTest, testing::Values(8, 16, 32),
                         [](const auto& param) { return fmt::format("Block{}", param.param); });

}  // namespace
}  // namespace coppice::test
