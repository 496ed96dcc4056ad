// The weights' memory is let go where nobody asks, and comes back for whoever does.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "harness.h"

namespace coppice::testing {
namespace {

using namespace std::chrono_literals;

class Sleep : public ::testing::TestWithParam<int> {
 protected:
  Harness make(engine::Clock::duration after = 10s) { return Harness({.sleep_after = after, .depth = GetParam()}); }
  /// Until it rests.
  static void idle(Harness& h) {
    for (int i = 0; i < 3; ++i) h.step();
  }
  std::mt19937_64 random_{7};
};

TEST_P(Sleep, WhenTheTimeIsOverAndNoSooner) {
  Harness h = make();
  h.submit({.prompt = random_prompt(random_, 30), .max_tokens = 3});
  h.finish();
  h.now += 9s;
  idle(h);
  EXPECT_FALSE(h.executor().asleep());
  EXPECT_FALSE(h.snapshot().asleep);
  h.now += 2s;
  idle(h);
  EXPECT_TRUE(h.executor().asleep());
  EXPECT_TRUE(h.snapshot().asleep);
}

TEST_P(Sleep, TheNextRequestWakesItAndFindsTheCache) {
  Harness h = make();
  const auto prompt = random_prompt(random_, 40);
  h.submit({.prompt = prompt, .max_tokens = 3});
  h.finish();
  h.now += 11s;
  idle(h);
  ASSERT_TRUE(h.executor().asleep());
  const auto computed = h.snapshot().computed_tokens;
  const auto again = h.submit({.prompt = prompt, .max_tokens = 3});
  h.finish();
  EXPECT_EQ(h.result(again).samples[0].tokens.size(), 3U);
  EXPECT_LE(h.snapshot().computed_tokens - computed, 8);
  EXPECT_FALSE(h.snapshot().asleep);
  EXPECT_EQ(h.snapshot().wakes, 1);
}

TEST_P(Sleep, WhoRunsKeepsItAwake) {
  Harness h = make();
  const auto id = h.submit({.prompt = random_prompt(random_, 30), .max_tokens = 50});
  for (int i = 0; i < 20; ++i) {
    h.now += 11s;
    h.step();
    EXPECT_FALSE(h.executor().asleep());
  }
  h.cancel(id);
  h.finish();
}

TEST_P(Sleep, QuestionsAndCancelledRequestsDoNotWakeIt) {
  Harness h = make();
  h.now += 11s;
  idle(h);
  ASSERT_TRUE(h.executor().asleep());
  h.cancel(h.submit({.prompt = random_prompt(random_, 30)}));
  h.finish();
  idle(h);
  EXPECT_TRUE(h.executor().asleep());
  EXPECT_EQ(h.snapshot().wakes, 0);
}

TEST_P(Sleep, WithoutMemoryToWakeTheRequestFailsAndTheNextOneTries) {
  Harness h = make();
  h.now += 11s;
  idle(h);
  h.executor().fail_wakes(1);
  const auto first = h.submit({.prompt = random_prompt(random_, 30), .max_tokens = 3});
  h.finish();
  EXPECT_TRUE(h.result(first).done);
  EXPECT_EQ(h.result(first).refusal, engine::Refusal::kNoMemory);
  EXPECT_TRUE(h.snapshot().asleep);
  const auto second = h.submit({.prompt = random_prompt(random_, 30), .max_tokens = 3});
  h.finish();
  EXPECT_EQ(h.result(second).samples[0].tokens.size(), 3U);
}

TEST_P(Sleep, WhileItWakesDeadlinesAreKept) {
  Harness h = make();
  h.now += 11s;
  idle(h);
  h.executor().wake_in(1000);
  const auto late = h.submit({.prompt = random_prompt(random_, 30), .max_tokens = 3, .deadline = h.now + 1s});
  for (int i = 0; i < 10; ++i) h.step();
  EXPECT_FALSE(h.result(late).done);
  h.now += 2s;
  h.step();
  EXPECT_EQ(h.result(late).refusal, engine::Refusal::kTimeout);
  EXPECT_TRUE(h.snapshot().asleep);
}

TEST_P(Sleep, WhatHasBegunToWakeWakesThoughNobodyWaitsAndSleepsAgain) {
  Harness h = make();
  h.now += 11s;
  idle(h);
  h.executor().wake_in(10);
  const auto id = h.submit({.prompt = random_prompt(random_, 30)});
  h.step();
  h.cancel(id);
  for (int i = 0; i < 20; ++i) h.step();
  EXPECT_EQ(h.snapshot().wakes, 1);
  h.now += 11s;
  idle(h);
  EXPECT_TRUE(h.executor().asleep());
}

TEST_P(Sleep, NeverWhereNobodyWantsItOrTheDeviceCannot) {
  Harness off = make({});
  off.now += 1h;
  idle(off);
  EXPECT_FALSE(off.executor().asleep());
  Harness cannot = make();
  cannot.executor().never_sleep();
  cannot.now += 1h;
  idle(cannot);
  EXPECT_FALSE(cannot.snapshot().asleep);
}

TEST_P(Sleep, ADeviceThatFailsMeanwhileEndsNoEngine) {
  Harness h = make();
  h.executor().fail_sleep();
  h.now += 1h;
  idle(h);
  EXPECT_FALSE(h.snapshot().asleep);
  const auto id = h.submit({.prompt = random_prompt(random_, 30), .max_tokens = 3});
  h.finish();
  EXPECT_EQ(h.result(id).samples[0].tokens.size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Depths, Sleep, ::testing::Values(0, 1));

}  // namespace
}  // namespace coppice::testing
