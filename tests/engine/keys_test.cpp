// One key's requests don't keep another's out: in the queue, the batch, the pool, the rows of a step (key_shares.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/harness.h"
#include "engine/mailbox.h"
#include "engine/step_budget.h"

namespace coppice::testing {
namespace {

class Keys : public PerDepth {
 protected:
  /// Of a key that floods.
  std::vector<engine::RequestId> flood(Harness& h, int n, Submission like) {
    std::vector<engine::RequestId> ids;
    const std::size_t length = like.prompt.size();
    for (int i = 0; i < n; ++i) {
      like.prompt = random_prompt(random_, length);
      like.payer = "flood";
      ids.push_back(h.submit(like));
    }
    return ids;
  }
  /// Steps until the request's first token.
  static int steps_to_first(Harness& h, engine::RequestId id, int most = 500) {
    const int begin = h.steps();
    while (h.result(id).first_step < 0 && !h.result(id).done && h.steps() < begin + most) h.step();
    EXPECT_GE(h.result(id).first_step, 0);
    return h.steps() - begin;
  }
  std::mt19937_64 random_{1};
};

TEST_P(Keys, TakeTurnsInTheQueue) {
  Harness h({.groups = groups(), .max_batch = 1, .depth = depth()});
  const auto many = flood(h, 100, {.prompt = random_prompt(random_, 20), .max_tokens = 2});
  for (int i = 0; i < 10; ++i) h.step();
  std::vector<engine::RequestId> own;
  for (int i = 0; i < 3; ++i)
    own.push_back(h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 2, .payer = "victim"}));
  h.finish();
  int before = 0;  // of the flood, those that began between the first and the last of the others
  for (const auto id : many)
    before +=
        h.result(id).first_step > h.result(own[0]).first_step && h.result(id).first_step < h.result(own[2]).first_step;
  EXPECT_EQ(before, 2);
  int first = 0;
  for (const auto id : many) first += h.result(id).first_step < h.result(own[0]).first_step;
  EXPECT_LE(first, 6);
}

TEST_P(Keys, OnAHotPrefixDontPass) {
  Harness h({.groups = groups(), .max_batch = 3, .depth = depth()});
  const Prompt shared = random_prompt(random_, 64);
  std::vector<engine::RequestId> hot;
  for (int i = 0; i < 100; ++i)
    hot.push_back(h.submit({.prompt = shared + random_prompt(random_, 6), .max_tokens = 8, .payer = "flood"}));
  for (int i = 0; i < 20; ++i) h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 200, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, own), 16);
  const auto second = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 2, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, second), 30) << "by its turn, although one runs";
  h.finish();
}

/// Those that run don't end.
TEST_P(Keys, TakeAPlaceOfTheKeyThatHasMost) {
  for (const std::int32_t priority : {0, -5}) {
    Harness h({.groups = groups(), .max_batch = 4, .depth = depth()});
    flood(h, 20, {.prompt = random_prompt(random_, 20), .max_tokens = 300, .priority = priority});
    for (int i = 0; i < 20; ++i) h.step();
    for (int i = 0; i < 2; ++i) {
      const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 5, .payer = "victim"});
      EXPECT_LE(steps_to_first(h, own), 6) << priority;
      while (!h.result(own).done) h.step();
    }
    EXPECT_GT(h.snapshot().preemptions, 0);
    h.finish();
  }
}

/// However they come: not only while nothing of theirs runs.
TEST_P(Keys, TakeTheirPartWhileOneOfThemRuns) {
  Harness h({.groups = groups(), .max_batch = 4, .depth = depth()});
  flood(h, 20, {.prompt = random_prompt(random_, 20), .max_tokens = 300});
  for (int i = 0; i < 20; ++i) h.step();
  h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 300, .payer = "victim"});
  for (int i = 0; i < 10; ++i) h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 5, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, own), 6);
  h.finish();
}

/// It begins, too, and has its samples as places become free.
TEST_P(Keys, ArentHeldUpByWhoWantsAllPlaces) {
  Harness h({.groups = groups(), .max_batch = 4, .depth = depth()});
  h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 300, .payer = "victim"});
  for (int i = 0; i < 10; ++i) h.step();
  const auto all = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 40, .n = 4, .payer = "flood"});
  h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 5, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, own), 6);
  EXPECT_LE(steps_to_first(h, all), 6);
  h.finish();
  EXPECT_TRUE(h.result(all).done && !h.result(all).refusal);
}

/// More than its part, which it waits for.
TEST_P(Keys, ArentHeldUpByWhoWantsMostOfThePool) {
  Harness h({.groups = groups(), .num_blocks = scaled(groups(), 60), .depth = depth()});
  h.submit({.prompt = random_prompt(random_, 60), .max_tokens = 100, .payer = "victim"});
  for (int i = 0; i < 10; ++i) h.step();
  flood(h, 1, {.prompt = random_prompt(random_, 430), .max_tokens = 2});
  h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 5, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, own), 12);
  h.finish();
}

/// Blocks are short, not places.
TEST_P(Keys, TakeRoomOfTheKeyThatHasMost) {
  const auto n_groups = static_cast<std::int32_t>(make_groups(groups()).size());
  Harness h({.groups = groups(), .num_blocks = n_groups * 60 + 1, .depth = depth()});
  flood(h, 20, {.prompt = random_prompt(random_, 100), .max_tokens = 200});
  for (int i = 0; i < 60; ++i) h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 60), .max_tokens = 5, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, own), 10);
  h.finish();
}

/// However many places it takes, places that become free go to who has fewer: nothing is taken back that was just
/// given.
TEST_P(Keys, WhoHoldsLeastIsNext) {
  Harness h({.groups = groups(), .max_batch = 8, .depth = depth()});
  const auto submit = [&](const char* key, int n = 1) {
    return h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 300, .n = n, .payer = key});
  };
  submit("flood", 3);
  submit("victim");
  for (int i = 0; i < 10; ++i) h.step();
  std::vector<engine::RequestId> own;
  for (int i = 0; i < 10; ++i) {
    submit("flood");
    own.push_back(submit("victim"));
  }
  for (int i = 0; i < 10; ++i) h.step();
  EXPECT_EQ(std::ranges::count_if(own, [&](auto id) { return h.result(id).first_step >= 0; }), 3);
  EXPECT_EQ(h.snapshot().preemptions, 0);
  for (const auto& [id, result] : h.results()) h.cancel(id);
  h.finish();
}

/// Answers that grow into a full pool take blocks of the key that holds most, not of who came last.
TEST_P(Keys, ArentPreemptedForWhoGrows) {
  Harness h({.groups = groups(), .num_blocks = scaled(groups(), 60), .depth = depth()});
  flood(h, 4, {.prompt = random_prompt(random_, 60), .max_tokens = 380});
  for (int i = 0; i < 12; ++i) h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 200, .payer = "victim"});
  steps_to_first(h, own);
  for (std::size_t tokens = 1; !h.result(own).done; ++tokens) {
    ASSERT_EQ(h.result(own).samples[0].tokens.size(), tokens) << "one token a step";
    h.step();
  }
  EXPECT_GT(h.snapshot().preemptions, 0);
  for (const auto& [id, result] : h.results()) h.cancel(id);
  h.finish();
}

/// One request takes all places.
TEST_P(Keys, TakeAPlaceOfAKeysOnlyRequest) {
  for (const int steps : {1, 20}) {  // its prompt is under way, or its samples are
    Harness h({.groups = groups(), .max_batch = 4, .step_tokens = 16, .depth = depth()});
    const auto all = h.submit({.prompt = random_prompt(random_, 60), .max_tokens = 300, .n = 4, .payer = "flood"});
    for (int i = 0; i < steps; ++i) h.step();
    for (int i = 0; i < 3; ++i) {
      const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 5, .payer = "victim"});
      EXPECT_LE(steps_to_first(h, own), 10) << steps;
      while (!h.result(own).done) h.step();
    }
    EXPECT_GT(h.snapshot().preemptions, 0);
    h.finish();
    EXPECT_TRUE(h.result(all).done && !h.result(all).refusal);
  }
}

/// One request takes most of the pool.
TEST_P(Keys, TakeRoomOfAKeysOnlyRequest) {
  const auto n_groups = static_cast<std::int32_t>(make_groups(groups()).size());
  Harness h({.groups = groups(), .num_blocks = n_groups * 40 + 1, .depth = depth()});
  h.submit({.prompt = random_prompt(random_, 280), .max_tokens = 30, .payer = "flood"});
  for (int i = 0; i < 5; ++i) h.step();
  const auto own = h.submit({.prompt = random_prompt(random_, 60), .max_tokens = 5, .payer = "victim"});
  EXPECT_LE(steps_to_first(h, own), 10);
  h.finish();
}

/// What runs alone of its key stays.
TEST_P(Keys, LeaveEachOtherOne) {
  Harness h({.groups = groups(), .max_batch = 2, .depth = depth()});
  std::vector<engine::RequestId> ids;
  for (const char* key : {"one", "two", "three"})
    ids.push_back(h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 50, .payer = key}));
  for (int i = 0; i < 40; ++i) h.step();
  EXPECT_LT(h.result(ids[2]).first_step, 0);
  EXPECT_EQ(h.snapshot().preemptions, 0);
  h.finish();
}

/// However few there are: of blocks' size, or fewer.
TEST_P(Keys, ShareTheRowsOfAStep) {
  for (const int step_tokens : {64, 16}) {
    Harness h({.groups = groups(), .max_batch = step_tokens / 2, .step_tokens = step_tokens, .depth = depth()});
    flood(h, 1, {.prompt = random_prompt(random_, 5), .max_tokens = 1000});  // prompts get half beside it
    flood(h, 20, {.prompt = random_prompt(random_, 2000), .max_tokens = 2});
    for (int i = 0; i < 10; ++i) h.step();
    const auto own = h.submit({.prompt = random_prompt(random_, 40), .max_tokens = 2, .payer = "victim"});
    EXPECT_LE(steps_to_first(h, own), 12 * 64 / step_tokens) << step_tokens;
    for (const auto& [id, result] : h.results()) h.cancel(id);
    h.finish();
  }
}

/// On a slow device.
TEST_P(Keys, GetShortStepsWhereSeveralCome) {
  Harness h({.groups = groups(), .step_tokens = 512, .max_extend = 512, .state_stride = kNoStride, .depth = depth()});
  h.executor().during_forward([] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  const auto most_rows = [&](int steps) {
    int most = 0;
    for (int i = 0; i < steps; ++i) {
      h.step();
      most = std::max(most, h.last().n_rows);
    }
    return most;
  };
  h.submit({.prompt = random_prompt(random_, 40), .max_tokens = 1, .payer = "victim"});
  h.run();
  const auto first = flood(h, 2, {.prompt = random_prompt(random_, 1500), .max_tokens = 1});
  EXPECT_LE(most_rows(3), engine::StepBudget::kSharedRows);
  for (const auto id : first) h.cancel(id);
  h.now += engine::StepBudget::kLately;
  h.executor().during_forward([] {});
  flood(h, 2, {.prompt = random_prompt(random_, 1500), .max_tokens = 1});
  EXPECT_EQ(most_rows(2), 512) << "nobody else comes";
  h.finish();
}

TEST_P(Keys, FindAPlaceInAFullQueue) {
  Harness h({.groups = groups(), .max_batch = 1, .max_waiting = 10, .depth = depth()});
  const auto many = flood(h, 30, {.prompt = random_prompt(random_, 20), .max_tokens = 30});
  h.step();
  std::vector<engine::RequestId> own;
  for (int i = 0; i < 20; ++i)
    own.push_back(h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 2, .payer = "victim"}));
  h.finish();
  const auto refused = [&](engine::RequestId id) { return h.result(id).refusal == engine::Refusal::kQueueFull; };
  EXPECT_EQ(std::ranges::count_if(many, refused), 24);
  EXPECT_TRUE(refused(many[29]) && refused(many[10]) && !refused(many[0]));
  EXPECT_EQ(std::ranges::count_if(own, refused), 15);
  EXPECT_FALSE(refused(own[0]));
}

TEST_P(Keys, LeaveWeightForOthers) {
  constexpr std::size_t kWeight = 20 + engine::kSampleWeight + 64, kMost = 100;
  Harness h({.groups = groups(), .max_batch = 1, .max_weight = kMost * kWeight, .depth = depth()});
  const auto many = flood(h, 200, {.prompt = random_prompt(random_, 20), .max_tokens = 2});
  const auto own = h.submit({.prompt = random_prompt(random_, 20), .max_tokens = 2, .payer = "victim"});
  h.finish();
  EXPECT_FALSE(h.result(own).refusal);
  int refused = 0;
  for (const auto id : many) refused += h.result(id).refusal == engine::Refusal::kQueueFull;
  EXPECT_EQ(refused, 200 - static_cast<int>(kMost * engine::kMostOfRest / (engine::kMostOfRest + 1)));
}

INSTANTIATE_TEST_SUITE_P(Groups, Keys,
                         ::testing::Combine(::testing::Values(Groups::kFull, Groups::kFullAndSliding,
                                                              Groups::kFullAndRecurrent),
                                            ::testing::Values(0, 1)),
                         name_of_both);

}  // namespace
}  // namespace coppice::testing
