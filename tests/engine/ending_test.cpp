// How requests end before their time: cancellation in every phase, deadlines, failed steps, stop() [E3].
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using engine::Clock;
using engine::Refusal;
using sampling::Finish;
using Ending = PerGroups;

TEST_P(Ending, CancelledAtEveryStepGivesItsBlocksBackInOneStep) {
  for (int n = 1; n <= 3; n += 2) {
    bool in_prefill = false, in_stream = false;
    for (int k = 0; k < 20; ++k) {
      SCOPED_TRACE("cancelled after step " + std::to_string(k));
      std::mt19937_64 random(1);
      Harness h({.groups = GetParam(), .max_batch = 8, .step_tokens = 12});
      const auto id = h.submit({.prompt = random_prompt(random, 70), .max_tokens = 50, .n = n});
      for (int i = 0; i < k; ++i) h.step();
      in_prefill |= k > 0 && h.result(id).first_step < 0;
      in_stream |= h.result(id).first_step >= 0;
      h.cancel(id);
      h.cancel(id);
      h.cancel(id + 1000);
      h.step();
      EXPECT_TRUE(h.result(id).done);
      for (const auto& sample : h.result(id).samples) EXPECT_EQ(sample.finish, Finish::kCancelled);
      EXPECT_EQ(h.snapshot().cache.in_use, 0);
      EXPECT_EQ(h.snapshot().requests_cancelled, 1);
      h.finish();
    }
    EXPECT_TRUE(in_prefill && in_stream);
  }
}

TEST_P(Ending, CancelledInTheQueue) {
  std::mt19937_64 random(2);
  Harness h({.groups = GetParam(), .max_batch = 1});
  const auto running = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 12});
  const auto waiting = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 12});
  const auto next = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 12});
  h.step();
  EXPECT_EQ(h.snapshot().waiting_requests, 2);
  h.cancel(waiting);
  h.step();
  EXPECT_TRUE(h.result(waiting).done);
  EXPECT_EQ(h.snapshot().waiting_requests, 1);
  h.finish();
  EXPECT_EQ(h.result(running).samples[0].finish, Finish::kLength);
  EXPECT_EQ(h.result(next).samples[0].finish, Finish::kLength);
}

TEST_P(Ending, CancelledAsAFollower) {
  std::mt19937_64 random(3);
  Harness h({.groups = GetParam(), .max_batch = 8, .step_tokens = 12});
  const auto prompt = random_prompt(random, 100);
  h.submit({.prompt = prompt, .max_tokens = 12});
  const auto follower = h.submit({.prompt = prompt, .max_tokens = 12});
  const auto other = h.submit({.prompt = prompt, .max_tokens = 12, .seed = 4});
  h.step();
  EXPECT_EQ(h.snapshot().following_requests, 2);
  h.cancel(follower);
  h.step();
  EXPECT_TRUE(h.result(follower).done);
  EXPECT_EQ(h.snapshot().following_requests, 1);
  h.finish();
  EXPECT_EQ(h.result(other).usage.cached_tokens, 96) << "the whole blocks of one still running";
}

TEST_P(Ending, CancelledInTheMailbox) {
  std::mt19937_64 random(4);
  Harness h({.groups = GetParam()});
  const auto id = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 12});
  h.cancel(id);
  h.step();
  EXPECT_EQ(h.result(id).samples[0].finish, Finish::kCancelled);
  EXPECT_EQ(h.executor().steps().size(), 0u);
  h.finish();
}

TEST_P(Ending, WhatWasComputedBeforeACancelIsKept) {
  std::mt19937_64 random(5);
  Harness h({.groups = GetParam(), .max_batch = 8, .step_tokens = 13});
  const auto prompt = random_prompt(random, 100);
  const auto first = h.submit({.prompt = prompt, .max_tokens = 12});
  for (int i = 0; i < 4; ++i) h.step();
  h.cancel(first);
  const auto second = h.submit({.prompt = prompt, .max_tokens = 12});
  h.finish();
  EXPECT_EQ(h.result(second).usage.cached_tokens, 4 * 13);
}

TEST_P(Ending, Deadlines) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam(), .max_batch = 2});
  const auto past = Clock::now() - std::chrono::seconds(1);
  const auto soon = Clock::now() + std::chrono::milliseconds(20);
  const auto late = h.submit({.prompt = random_prompt(random, 30), .deadline = past});
  // No limit, and a pool for thousands of tokens: only the deadline ends these.
  const auto running = h.submit({.prompt = random_prompt(random, 30), .deadline = soon});
  const auto waiting = h.submit({.prompt = random_prompt(random, 30), .n = 2, .deadline = soon});
  const auto patient = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 5});
  h.step();
  EXPECT_TRUE(h.result(late).done);
  EXPECT_TRUE(h.result(late).samples[0].tokens.empty());
  h.finish();
  for (const auto id : {late, running, waiting}) EXPECT_EQ(h.result(id).samples[0].finish, Finish::kCancelled);
  EXPECT_EQ(h.result(patient).samples[0].finish, Finish::kLength);
  EXPECT_EQ(h.snapshot().requests_cancelled, 3);
}

TEST_P(Ending, AFailedStepEndsItsBatchAndNobodyElse) {
  std::mt19937_64 random(7);
  for (int k = 0; k < 12; ++k) {
    SCOPED_TRACE("step " + std::to_string(k) + " fails");
    Harness h({.groups = GetParam(), .max_batch = 3, .step_tokens = 16});
    h.executor().fail_at(k);
    const auto shared = random_prompt(random, 40);
    std::vector<engine::RequestId> ids;
    for (std::uint64_t i = 0; i < 5; ++i) {
      ids.push_back(
          h.submit({.prompt = shared + random_prompt(random, 9), .max_tokens = 9, .n = i == 1 ? 2 : 1, .seed = i}));
    }
    h.finish();
    int failed = 0, finished = 0;
    for (const auto id : ids) {
      const auto& result = h.result(id);
      if (result.refusal) {
        EXPECT_EQ(result.refusal, Refusal::kFailed);
        ++failed;
      } else if (std::ranges::any_of(result.samples, [](const auto& s) { return s.finish == Finish::kError; })) {
        EXPECT_THAT(result.message, ::testing::HasSubstr("told to fail"));
        ++failed;
      } else {
        ++finished;
      }
    }
    EXPECT_GT(failed, 0);
    EXPECT_EQ(h.snapshot().requests_failed, failed);
    EXPECT_EQ(h.snapshot().requests_finished, finished);
    // The engine lives, and nothing of the failed step is found in the tree.
    h.submit({.prompt = h.result(ids[0]).submission.prompt, .max_tokens = 9, .seed = 77});
    h.submit({.prompt = h.result(ids[1]).submission.prompt, .max_tokens = 9, .n = 3, .seed = 78});
    h.finish();
    EXPECT_EQ(h.snapshot().requests_finished, finished + 2);
  }
}

// Memory that ran out inside the executor is a failed step, not the end of the server.
TEST_P(Ending, AnyExceptionOfTheExecutorFailsTheStepOnly) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam()});
  const auto prompt = random_prompt(random, 30);
  h.executor().during_forward([] { throw std::bad_alloc(); });
  const auto failed = h.submit({.prompt = prompt, .max_tokens = 5});
  h.step();
  EXPECT_EQ(h.result(failed).refusal, engine::Refusal::kFailed);
  EXPECT_EQ(h.snapshot().cache.in_use, 0);
  h.executor().during_forward(nullptr);
  const auto next = h.submit({.prompt = prompt, .max_tokens = 5});
  h.run();
  EXPECT_EQ(error_in(h.result(next), h.groups()), "");
}

TEST_P(Ending, ASamplerThatThrowsEndsItsSampleOnly) {
  std::mt19937_64 random(9);
  for (const int tokens : {0, 5}) {
    Harness h({.groups = GetParam()});
    const auto id = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 9, .n = 2, .throw_at = tokens});
    const auto other = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 9});
    h.finish();
    EXPECT_EQ(h.result(id).samples[0].finish, Finish::kError);
    EXPECT_EQ(h.result(id).samples[0].tokens.size(), static_cast<std::size_t>(tokens));
    EXPECT_THAT(h.result(id).message, ::testing::HasSubstr("told to fail"));
    EXPECT_EQ(h.result(id).samples[1].finish, Finish::kLength);
    EXPECT_EQ(h.result(other).samples[0].finish, Finish::kLength);
  }
}

TEST_P(Ending, StopEndsWhatIsOpen) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam(), .max_batch = 2});
  const auto streaming = h.submit({.prompt = random_prompt(random, 30), .n = 2});
  const auto waiting = h.submit({.prompt = random_prompt(random, 30)});
  for (int i = 0; i < 5; ++i) h.step();
  const auto late = h.submit({.prompt = random_prompt(random, 30)});
  h.engine().stop();
  EXPECT_FALSE(h.step());
  for (const auto id : {streaming, waiting}) EXPECT_EQ(h.result(id).samples[0].finish, Finish::kCancelled);
  EXPECT_FALSE(h.result(streaming).samples[1].tokens.empty());
  EXPECT_EQ(h.result(late).refusal, Refusal::kShutdown);
  h.finish();
}

COPPICE_FOR_ALL_GROUPS(Ending);

}  // namespace
}  // namespace coppice::testing
