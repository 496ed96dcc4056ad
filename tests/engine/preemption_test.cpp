// Out of blocks: preempt the youngest, resume through the tree, lose nothing.
#include <gtest/gtest.h>

#include <climits>
#include <iostream>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using sampling::Finish;
using Preemption = PerDepth;

TEST_P(Preemption, StreamsGoOnWithoutRepeatedOrMissingTokens) {
  bool resumed = false;
  for (int blocks = 10; blocks < 40; ++blocks) {
    SCOPED_TRACE(blocks);
    std::mt19937_64 random(1);
    Harness h({.groups = groups(),
               .num_blocks = scaled(groups(), blocks),
               .max_batch = 8,
               .max_extend = 8,
               .depth = depth()});
    for (std::uint64_t i = 0; i < 6; ++i) {
      h.submit({.prompt = random_prompt(random, 20), .max_tokens = 40, .n = i % 3 == 1 ? 2 : 1, .seed = 10 * i});
    }
    h.finish();
    resumed |= h.snapshot().preemptions > 0;
    EXPECT_EQ(h.snapshot().requests_finished, 6);
    if (HasFailure()) return;
  }
  EXPECT_TRUE(resumed);
}

TEST_P(Preemption, TheYoungestYieldsAndTheOldestNeverPauses) {
  std::int64_t preemptions = 0;
  for (int blocks = 8; blocks < 30; ++blocks) {
    SCOPED_TRACE(blocks);
    std::mt19937_64 random(2);
    Harness h({.groups = groups(),
               .num_blocks = scaled(groups(), blocks),
               .max_batch = 8,
               .max_extend = 8,
               .growth_room = false,
               .depth = depth()});
    std::vector<engine::RequestId> ids;
    for (std::uint64_t i = 0; i < 4; ++i) {
      ids.push_back(h.submit({.prompt = random_prompt(random, 24), .max_tokens = 60, .seed = i}));
    }
    while (h.result(ids[0]).first_step < 0) h.step();
    for (std::size_t tokens = 1; !h.result(ids[0]).done; ++tokens) {
      ASSERT_EQ(h.result(ids[0]).samples[0].tokens.size(), tokens) << "one token a step";
      h.step();
    }
    preemptions += h.snapshot().preemptions;
    h.finish();
    for (std::size_t i = 1; i < ids.size(); ++i) {
      EXPECT_LE(h.result(ids[i - 1]).done_step, h.result(ids[i]).done_step) << "in the order of arrival";
    }
    if (HasFailure()) return;
  }
  EXPECT_GT(preemptions, 10);
}

TEST_P(Preemption, ThePreemptedComesBackBeforeThoseWhoCameLater) {
  int met = 0;
  for (std::int32_t num_blocks = 20; num_blocks < 100; ++num_blocks) {
    SCOPED_TRACE(num_blocks);
    std::mt19937_64 random(3);
    Harness h({.groups = groups(),
               .num_blocks = num_blocks,
               .max_batch = 8,
               .max_extend = 8,
               .growth_room = false,
               .depth = depth()});
    h.submit({.prompt = random_prompt(random, 30), .max_tokens = 70});
    const auto second = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 70, .seed = 2});
    while (h.snapshot().preemptions == 0 && h.step()) {
    }
    if (h.snapshot().preemptions == 0 || h.result(second).done) continue;
    const auto third = h.submit({.prompt = random_prompt(random, 8), .max_tokens = 3, .seed = 3});
    while (h.snapshot().running_requests < 2 && h.step()) {
    }
    // It would have fitted long before, but it is not its turn until the second runs again.
    const int first_step = h.result(third).first_step;
    EXPECT_TRUE(first_step < 0 || first_step == h.steps());
    ++met;
    h.finish();
    if (HasFailure()) return;
  }
  EXPECT_GT(met, 0);
}

TEST_P(Preemption, ResumesThroughTheTree) {
  std::mt19937_64 random(4);
  Harness h({.groups = Groups::kFull, .num_blocks = 41, .max_batch = 8, .max_extend = 8, .depth = depth()});
  // The older one ends soon after it has taken a few blocks, so most of the younger one's are still cached.
  h.submit({.prompt = random_prompt(random, 150), .max_tokens = 30});
  const auto young = h.submit({.prompt = random_prompt(random, 100), .max_tokens = 60, .n = 2, .seed = 5});
  while (h.snapshot().preemptions == 0) ASSERT_TRUE(h.step());
  const auto before = h.snapshot().computed_tokens;
  EXPECT_EQ(h.snapshot().waiting_requests, 1);
  h.finish();
  EXPECT_LT(h.snapshot().computed_tokens - before, 100) << "both samples together recompute less than the prompt";
  EXPECT_EQ(h.result(young).usage.cached_tokens, 0) << "as of first admission";
  EXPECT_EQ(h.result(young).usage.completion_tokens, 120);
}

TEST_P(Preemption, ALoneRunnerGoesAsFarAsThePoolGoes) {
  std::mt19937_64 random(5);
  for (int n = 1; n <= 3; ++n) {
    Harness h(
        {.groups = groups(), .num_blocks = scaled(groups(), 24), .max_batch = 4, .max_extend = 8, .depth = depth()});
    const auto id = h.submit({.prompt = random_prompt(random, 20), .n = n});
    h.finish();
    if (n == 1) EXPECT_EQ(h.snapshot().preemptions, 0) << "a lone sample is never preempted";
    for (const auto& sample : h.result(id).samples) {
      EXPECT_EQ(sample.finish, Finish::kLength);
      EXPECT_GT(sample.tokens.size(), 1u);
      // 24 blocks of 8, and the last token needs no slot.
      if (groups() == Groups::kFull) EXPECT_EQ(sample.tokens.size(), 24u * 8 - 20 + 1) << n;
    }
  }
}

// The samples of a request that runs alone give way to each other: none is cut because all together have no room.
TEST_P(Preemption, SamplesThatFitOneByOneAllGetWhatWasAskedFor) {
  std::mt19937_64 random(7);
  Harness h(
      {.groups = groups(), .num_blocks = scaled(groups(), 24), .max_batch = 4, .max_extend = 8, .depth = depth()});
  const auto id = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 100, .n = 4});
  h.finish();
  for (const auto& sample : h.result(id).samples) EXPECT_EQ(sample.tokens.size(), 100U);
  if (groups() == Groups::kFull) EXPECT_GT(h.snapshot().preemptions, 0);
}

TEST_P(Preemption, APoolLimitedRequestLetsTheNextOneIn) {
  std::mt19937_64 random(6);
  Harness h(
      {.groups = groups(), .num_blocks = scaled(groups(), 12), .max_batch = 4, .max_extend = 8, .depth = depth()});
  for (std::uint64_t i = 0; i < 5; ++i) {
    h.submit({.prompt = random_prompt(random, 20), .n = 1 + static_cast<int>(i % 2), .seed = i});
  }
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 5);
}

// Long answers in a pool for a few of them: without growth room whoever is preempted comes back as soon as the bare
// reservation is free, to be preempted again.
struct Thrash {
  double preemptions_per_token = 0;
  double recomputed = 0;  // rows beyond those of a pool that holds all, over these
  int soonest = INT_MAX;  // steps from an admission to the next preemption
  int steps = 0;
};

Thrash thrash(Groups groups, int depth, bool growth_room, std::int32_t num_blocks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Harness h({.groups = groups,
             .num_blocks = num_blocks,
             .max_batch = 16,
             .max_extend = 16,
             .growth_room = growth_room,
             .depth = depth});
  std::int64_t needed = 0;
  for (std::uint64_t i = 0; i < 60; ++i) {
    const int length = 10 + static_cast<int>(random() % 30), n = i % 5 == 0 ? 2 : 1;
    const int max_tokens = i % 7 == 0 ? 3 : 40 + static_cast<int>(random() % 60);
    needed += length + n * (max_tokens - 1);
    h.submit({.prompt = random_prompt(random, static_cast<std::size_t>(length)),
              .max_tokens = max_tokens,
              .n = n,
              .seed = i});
  }
  Thrash result;
  int last_admission = 0;
  auto before = h.snapshot();
  while (h.step()) {
    const auto after = h.snapshot();
    if (after.admissions + after.resumptions > before.admissions + before.resumptions) last_admission = h.steps();
    if (after.preemptions > before.preemptions) result.soonest = std::min(result.soonest, h.steps() - last_admission);
    before = after;
  }
  h.finish();
  std::int64_t rows = 0;
  for (const auto& step : h.executor().steps()) rows += step.n_rows;
  const auto figures = h.snapshot();
  result.preemptions_per_token =
      static_cast<double>(figures.preemptions) / static_cast<double>(figures.generated_tokens);
  result.recomputed = static_cast<double>(rows - needed) / static_cast<double>(needed);
  result.steps = static_cast<int>(figures.steps);
  return result;
}

TEST_P(Preemption, GrowthRoomKeepsItFromThrashing) {
  constexpr int kBlockSize = 8;
  const int n_groups = static_cast<int>(make_groups(groups()).size());
  Thrash all_without, all_with;  // over all loads: in a single one chance decides what is evicted and who is preempted
  for (const int blocks : {20, 30, 45}) {
    for (std::uint64_t seed = 7; seed < 11; ++seed) {
      SCOPED_TRACE(std::to_string(blocks) + " blocks, seed " + std::to_string(seed));
      const auto without = thrash(groups(), depth(), false, blocks * n_groups + 1, seed);
      const auto with = thrash(groups(), depth(), true, blocks * n_groups + 1, seed);
      std::cout << blocks << " blocks a group: preemptions per 1,000 tokens " << 1000 * without.preemptions_per_token
                << " -> " << 1000 * with.preemptions_per_token << ", computed again " << without.recomputed << " -> "
                << with.recomputed << ", steps " << without.steps << " -> " << with.steps
                << "; soonest after an admission " << without.soonest << " -> " << with.soonest << " steps\n";
      EXPECT_GE(with.soonest, kBlockSize) << "scheduler.h, invariant 4";
      EXPECT_LT(without.soonest, kBlockSize) << "the load is hard enough to thrash";
      for (const auto& [all, one] : {std::pair{&all_without, &without}, {&all_with, &with}}) {
        all->preemptions_per_token += one->preemptions_per_token;
        all->recomputed += one->recomputed;
      }
    }
  }
  EXPECT_LT(1.2 * all_with.preemptions_per_token, all_without.preemptions_per_token);
  EXPECT_LT(all_with.recomputed, all_without.recomputed);
}

// Clients may ask for any number of tokens: more than the context holds is the same as no limit.
TEST_P(Preemption, TheLargestMaxTokensIsNoLimit) {
  const auto run = [](Groups groups, std::int32_t max_tokens) {
    std::mt19937_64 random(8);
    Harness h({.groups = groups,
               .num_blocks = scaled(groups, 30),
               .max_batch = 8,
               .max_extend = 16,
               .context_length = 120,
               .depth = depth()});
    for (std::uint64_t i = 0; i < 12; ++i) {
      h.submit({.prompt = random_prompt(random, 10 + random() % 30), .max_tokens = max_tokens, .seed = i});
    }
    h.finish();
    std::vector<int> course = {static_cast<int>(h.snapshot().preemptions)};
    for (const auto& [id, result] : h.results()) course.insert(course.end(), {result.first_step, result.done_step});
    return course;
  };
  const auto unlimited = run(groups(), 0);
  EXPECT_EQ(run(groups(), INT32_MAX), unlimited);
  EXPECT_EQ(run(groups(), INT32_MAX - 20), unlimited);
}

COPPICE_FOR_ALL_DEPTHS(Preemption);

}  // namespace
}  // namespace coppice::testing
