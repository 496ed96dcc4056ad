// Who goes first: priorities, and requests that share a prefix in use, within a bound (queue.h).
#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using Fairness = PerDepth;

TEST_P(Fairness, LowerPriorityNumbersGoFirst) {
  std::mt19937_64 random(1);
  Harness h({.groups = groups(), .max_batch = 1, .depth = depth()});
  const auto running = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4, .priority = 5});
  h.step();
  const auto last = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4, .priority = 1});
  const auto third = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4});
  const auto fourth = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4});
  const auto second = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4, .priority = -1});
  h.finish();
  const auto first_step = [&](engine::RequestId id) { return h.result(id).first_step; };
  EXPECT_LT(h.result(running).done_step, first_step(second)) << "what runs is not stopped for those who wait";
  EXPECT_LT(first_step(second), first_step(third));
  EXPECT_LT(first_step(third), first_step(fourth)) << "among equals by arrival";
  EXPECT_LT(first_step(fourth), first_step(last));
}

TEST_P(Fairness, TheLeastImportantIsPreemptedFirst) {
  int met = 0;
  const auto n_groups = static_cast<std::int32_t>(make_groups(groups()).size());
  for (int blocks = 5; blocks < 30; ++blocks) {
    SCOPED_TRACE(blocks);
    std::mt19937_64 random(2);
    Harness h({.groups = groups(),
               .num_blocks = n_groups * blocks + 1,
               .max_batch = 8,
               .max_extend = 8,
               .growth_room = false,
               .depth = depth()});
    const auto lesser = h.submit({.prompt = random_prompt(random, 24), .max_tokens = 60, .priority = 3});
    while (h.result(lesser).first_step < 0 && h.step()) {
    }
    if (h.result(lesser).refusal) continue;  // too small a pool
    const auto later = h.submit({.prompt = random_prompt(random, 24), .max_tokens = 60, .seed = 2});
    while (!h.result(later).done && h.step()) {
      if (h.result(later).first_step < 0 || h.result(later).done) continue;
      const auto& tokens = h.result(later).samples[0].tokens;
      EXPECT_EQ(static_cast<int>(tokens.size()), h.steps() - h.result(later).first_step + 1) << "it never pauses";
    }
    met += h.snapshot().preemptions > 0 && !h.result(lesser).done;
    h.finish();
    if (HasFailure()) return;
  }
  EXPECT_GT(met, 0);
}

// A stream of requests on a prefix that is in use, two at a time beside a long one, and one that shares nothing.
struct Passed {
  int ahead = 0;            // later ones that had their first token sooner
  std::int64_t passes = 0;  // that were admitted sooner
  int submitted_after = 0;
};
Passed pass_one(Groups groups, int depth, int patience, std::int32_t priority = 0) {
  std::mt19937_64 random(3);
  Harness h({.groups = groups, .max_batch = 3, .patience = patience, .depth = depth});
  const auto shared = random_prompt(random, 64);
  h.submit({.prompt = shared, .max_tokens = 2000});  // so that it is in use all the time
  const auto hot = [&] {
    return h.submit({.prompt = shared + random_prompt(random, 6), .max_tokens = 8, .seed = random()});
  };
  for (int i = 0; i < 3; ++i) hot();
  for (int i = 0; i < 8; ++i) h.step();
  const auto cold = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 4, .priority = priority});
  std::vector<engine::RequestId> later;
  Passed result;
  while (h.result(cold).first_step < 0 && result.submitted_after < 300) {
    for (int i = 0; i < 2; ++i) later.push_back(hot());
    result.submitted_after += 2;
    h.step();
  }
  for (const auto id : later) result.ahead += h.result(id).first_step >= 0;
  result.passes = h.snapshot().passes;
  for (const auto& [id, r] : h.results()) h.cancel(id);
  h.finish();
  return result;
}

TEST_P(Fairness, HotRequestsPassOthersButNotForEver) {
  EXPECT_EQ(pass_one(groups(), depth(), 0).ahead, 0) << "in the order of arrival";
  for (const int bound : {1, 5, 32}) {
    SCOPED_TRACE(bound);
    const auto passed = pass_one(groups(), depth(), bound);
    EXPECT_LT(passed.passes, bound);
    if (bound == 32) EXPECT_GT(passed.passes, 10);
    EXPECT_LE(passed.ahead, bound + 2) << "those admitted together with it may be quicker through their prefill";
    EXPECT_LT(passed.submitted_after, 300);
  }
  EXPECT_EQ(pass_one(groups(), depth(), 32, -1).ahead, 0) << "no lower priority passes";
}

TEST_P(Fairness, RefusedRequestsTakeNoPlacesBetweenOthers) {
  std::mt19937_64 random(4);
  Harness h({.groups = groups(), .max_batch = 2, .context_length = 100, .patience = 8, .depth = depth()});
  const auto shared = random_prompt(random, 64);
  h.submit({.prompt = shared, .max_tokens = 30});
  h.submit({.prompt = random_prompt(random, 10), .max_tokens = 8});
  while (h.snapshot().running_requests < 2) h.step();
  const auto cold = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 4});
  h.step();
  for (int i = 0; i < 20; ++i) h.submit({.prompt = random_prompt(random, 200), .max_tokens = 4});
  h.step();
  const auto hot = h.submit({.prompt = shared + random_prompt(random, 6), .max_tokens = 8});
  h.finish();
  EXPECT_EQ(h.snapshot().passes, 1);
  EXPECT_LT(h.result(hot).first_step, h.result(cold).first_step);
}

TEST_P(Fairness, ABurstOnALongPrefixIsAdmittedInOneStep) {
  std::mt19937_64 random(5);
  Harness h({.groups = groups(),
             .num_blocks = 8000,
             .max_batch = 32,
             .step_tokens = 512,
             .max_extend = 512,
             .depth = depth()});
  const auto shared = random_prompt(random, 7000);
  h.submit({.prompt = shared, .max_tokens = 2});
  h.finish();
  for (std::uint64_t i = 0; i < 32; ++i) {
    h.submit({.prompt = shared + random_prompt(random, 10), .max_tokens = 3, .seed = i});
  }
  h.step();
  // With states one computes the prefix's last block again, and the others start behind it.
  if (groups() == Groups::kFullAndRecurrent) h.step();
  EXPECT_EQ(h.snapshot().running_requests, 32);
  h.finish();
}

// A queue that is never empty of more important requests.
TEST_P(Fairness, AStreamOfMoreImportantOnesKeepsNobodyOut) {
  for (const int bound : {0, 1, 5, 32}) {
    SCOPED_TRACE(bound);
    std::mt19937_64 random(6);
    Harness h({.groups = groups(), .max_batch = 2, .patience = bound, .depth = depth()});
    std::vector<engine::RequestId> stream;
    const auto supply = [&] {
      stream.push_back(
          h.submit({.prompt = random_prompt(random, 10), .max_tokens = 3, .seed = random(), .priority = INT32_MIN}));
    };
    for (int i = 0; i < 2; ++i) supply();
    h.step();
    const auto before = h.snapshot().admissions;
    std::vector<engine::RequestId> lesser;
    for (int i = 0; i < 3; ++i)
      lesser.push_back(h.submit({.prompt = random_prompt(random, 30), .max_tokens = 20, .priority = 5 - i}));
    std::vector<std::int64_t> admitted_ahead;
    while (admitted_ahead.size() < lesser.size() && stream.size() < 1000) {
      for (int i = 0; i < 3; ++i) supply();
      h.step();
      while (admitted_ahead.size() < lesser.size() && h.result(lesser[admitted_ahead.size()]).first_step >= 0)
        admitted_ahead.push_back(h.snapshot().admissions - before);
    }
    ASSERT_EQ(admitted_ahead.size(), lesser.size()) << "starved";
    for (std::size_t i = 0; i < lesser.size(); ++i) {
      const auto limit = (bound + 1) * static_cast<std::int64_t>(i + 1);
      EXPECT_LE(admitted_ahead[i], limit + 4) << "a few more while it prefills";
      EXPECT_GE(admitted_ahead[i], limit - 2) << "no sooner than it must; two were admitted before they came";
    }
    for (const auto& [id, r] : h.results()) h.cancel(id);
    h.finish();
  }
}

// Room in the batch for all, and prompts of which each step could be full.
TEST_P(Fairness, AStreamOfMoreImportantPromptsLeavesEachStepAPart) {
  std::mt19937_64 random(7);
  Harness h({.groups = groups(), .max_batch = 16, .depth = depth()});
  const auto lesser = h.submit({.prompt = random_prompt(random, 200), .max_tokens = 20, .priority = 5});
  int supplied = 0;
  while (!h.result(lesser).done && supplied < 1000) {
    h.submit({.prompt = random_prompt(random, 100), .max_tokens = 2, .seed = random(), .priority = -5});
    ++supplied;
    h.step();
  }
  EXPECT_LE(supplied, 200 / 8 + 20 + 1) << "a block a step, then a token a step";
  EXPECT_GE(supplied, 200 / 8 + 20 - 10) << "the supply is steady";
  for (const auto& [id, r] : h.results()) h.cancel(id);
  h.finish();
}

// A steady supply of prompts takes most of each step, and a less important request that is prefilling gets a block of
// it. Whoever shares its prompt, but is as important as the supply, does not wait for it.
TEST_P(Fairness, NobodyFollowsTheLessImportant) {
  std::mt19937_64 random(5);
  Harness h({.groups = groups(), .max_batch = 16, .state_stride = kNoStride, .depth = depth()});
  const auto shared = random_prompt(random, 600);
  const auto lesser = h.submit({.prompt = shared, .max_tokens = 4, .priority = 10});
  h.step();
  int supplied = 0;
  const auto supply = [&] {
    h.submit({.prompt = random_prompt(random, 100), .max_tokens = 2, .seed = random()});
    ++supplied;
    h.step();
  };
  for (int i = 0; i < 4; ++i) supply();
  const auto behind = h.submit({.prompt = shared + random_prompt(random, 5), .max_tokens = 4, .priority = 11});
  const auto equal = h.submit({.prompt = shared + random_prompt(random, 5), .max_tokens = 4});
  const auto follower = h.submit({.prompt = shared + random_prompt(random, 5), .max_tokens = 4, .priority = 1});
  supplied = 0;
  while (h.result(equal).first_step < 0 && supplied < 300) supply();
  EXPECT_LT(supplied, 40) << "four prompts before it, its own, and what may go along";
  EXPECT_LT(h.result(lesser).first_step, 0) << "the supply is steady";
  EXPECT_LT(h.result(behind).first_step, 0);
  h.finish();
  EXPECT_GT(h.result(follower).usage.cached_tokens, 590) << "who may follow does";
  EXPECT_GT(h.result(behind).usage.cached_tokens, 590);
}

// Two prefixes, requests in turn, a pool in which only one of them has room.
TEST_P(Fairness, RequestsOnOnePrefixRunTogether) {
  const auto run = [&](int patience) {
    std::mt19937_64 random(4);
    const auto n_groups = static_cast<std::int32_t>(make_groups(groups()).size());
    Harness h({.groups = groups(),
               .num_blocks = 39 + 14 * (n_groups - 1),
               .max_batch = 4,
               .max_extend = 32,
               .patience = patience,
               .depth = depth()});
    const std::vector<Prompt> shared = {random_prompt(random, 200), random_prompt(random, 200)};
    for (std::size_t i = 0; i < 24; ++i) {
      h.submit({.prompt = shared[i % 2] + random_prompt(random, 8),
                .max_tokens = 12 + static_cast<int>(i % 5),
                .seed = random()});
    }
    h.finish();
    std::cout << patience << " passes: " << h.snapshot().computed_tokens << " prompt tokens computed, "
              << h.snapshot().steps << " steps, " << h.snapshot().passes << " passes\n";
    return h.snapshot();
  };
  const auto strict = run(0), hot = run(32);
  EXPECT_EQ(strict.passes, 0);
  EXPECT_GT(hot.passes, 5);
  EXPECT_LT(3 * hot.steps, 2 * strict.steps);
  EXPECT_LT(hot.computed_tokens, strict.computed_tokens);
}

COPPICE_FOR_ALL_DEPTHS(Fairness);

// What the order saves on a deep queue of requests on several prefixes, at random: docs/decisions.md,
// "Who is admitted next".
TEST(FairnessInFigures, RunningTogetherSavesComputingPrefixesAgain) {
  constexpr int kPrefix = 200, kOwn = 20;
  const auto seed = test_seed(20261123);
  const auto run = [&](int patience, int prefixes, int fit) {
    std::mt19937_64 random(seed);
    const int each = kPrefix / 8 + 1;
    Harness h({.num_blocks = 1 + fit * each + 4 * 8, .max_batch = 8, .max_extend = 64, .patience = patience});
    std::vector<Prompt> shared;
    for (int i = 0; i < prefixes; ++i) shared.push_back(random_prompt(random, kPrefix));
    for (int i = 0; i < 200; ++i) {
      h.submit({.prompt = shared[random() % shared.size()] + random_prompt(random, kOwn),
                .max_tokens = 20,
                .seed = random()});
    }
    h.finish();
    return h.snapshot();
  };
  for (const int prefixes : {2, 4, 8, 16}) {
    for (const int fit : {1, 2, 4, 8}) {
      if (fit > prefixes) continue;
      const auto by_arrival = run(0, prefixes, fit), together = run(32, prefixes, fit);
      std::cout << prefixes << " prefixes, room for " << fit << ": steps " << by_arrival.steps << " -> "
                << together.steps << ", prompt tokens computed " << by_arrival.computed_tokens << " -> "
                << together.computed_tokens << "\n";
      if (2 * fit <= prefixes) EXPECT_LT(together.computed_tokens, 0.95 * by_arrival.computed_tokens);
    }
  }
}

}  // namespace
}  // namespace coppice::testing
