// Continuous batching with chunked prefill, samples that fork, limits and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using engine::Refusal;
using sampling::Finish;
using Batching = PerGroups;

TEST_P(Batching, OneRequestMatchesTheOracle) {
  std::mt19937_64 random(1);
  Harness h({.groups = GetParam()});
  const auto id = h.submit({.prompt = random_prompt(random, 150), .max_tokens = 40});
  h.finish();
  EXPECT_EQ(h.result(id).samples[0].tokens.size(), 40u);
  EXPECT_EQ(h.result(id).samples[0].finish, Finish::kLength);
  EXPECT_EQ(h.result(id).usage.cached_tokens, 0);
  const auto figures = h.snapshot();
  EXPECT_EQ(figures.computed_tokens, 150);
  EXPECT_EQ(figures.prompt_tokens, 150);
  EXPECT_EQ(figures.generated_tokens, 40);
  EXPECT_EQ(figures.cache.cow_forks, 0) << "a lone request makes no forks";
  // 150 tokens in chunks of at most 64, and the 40th token needs no row.
  EXPECT_EQ(figures.steps, 3 + 39);
}

TEST_P(Batching, WhatTheExecutorPlansIsBookkeeping) {
  constexpr double kEach = 1000;  // seconds: more than any step takes
  std::mt19937_64 random(1);
  Harness h({.groups = GetParam()});
  h.executor().claim_planning(kEach);
  h.executor().fail_at(3);
  for (int i = 0; i < 2; ++i) h.submit({.prompt = random_prompt(random, 100), .max_tokens = 6});
  h.run();
  h.submit({.prompt = random_prompt(random, 100), .max_tokens = 6});
  h.run();
  const auto s = h.snapshot();
  EXPECT_EQ(s.requests_failed, 2);
  EXPECT_GE(s.step_seconds - s.forward_seconds - s.sampling_seconds, kEach * static_cast<double>(s.steps));
}

TEST_P(Batching, ASecondRequestReusesAllButWhatItMust) {
  std::mt19937_64 random(2);
  Harness h({.groups = GetParam()});
  const auto shared = random_prompt(random, 45);
  h.submit({.prompt = shared + random_prompt(random, 20), .max_tokens = 5});
  h.finish();
  const auto second = h.submit({.prompt = shared + random_prompt(random, 20), .max_tokens = 5, .seed = 7});
  h.finish();
  EXPECT_EQ(h.result(second).usage.cached_tokens, 45) << "in tokens, not in whole blocks";
  const auto again = h.submit({.prompt = h.result(second).submission.prompt, .max_tokens = 5, .seed = 9});
  h.finish();
  EXPECT_EQ(h.result(again).usage.cached_tokens, 64) << "all but the last token, whose logits are needed";
  EXPECT_EQ(h.snapshot().computed_tokens, 65 + 20 + 1);
}

TEST_P(Batching, DecodesNeverWaitForALongPrefill) {
  std::mt19937_64 random(3);
  Harness h({.groups = GetParam(), .step_tokens = 48});
  constexpr int kHalf = 24;
  std::vector<engine::RequestId> decoding;
  for (std::uint64_t i = 0; i < 6; ++i) {
    decoding.push_back(h.submit({.prompt = random_prompt(random, 10), .max_tokens = 60, .seed = i}));
  }
  while (h.snapshot().generated_tokens < 6) h.step();
  while (h.snapshot().computed_tokens < 60) h.step();
  h.submit({.prompt = random_prompt(random, 2000), .max_tokens = 3});
  std::vector<std::size_t> before;
  for (const auto id : decoding) before.push_back(h.result(id).samples[0].tokens.size());
  for (int step = 1; step <= 14; ++step) {
    h.step();
    for (std::size_t i = 0; i < decoding.size(); ++i) {
      EXPECT_EQ(h.result(decoding[i]).samples[0].tokens.size(), before[i] + static_cast<std::size_t>(step));
    }
    EXPECT_EQ(h.last().n_rows, 6 + kHalf) << "the streams wait for half of a whole step at most";
  }
  while (h.snapshot().requests_finished < 6) h.step();
  h.step();
  EXPECT_EQ(h.last().n_rows, 48) << "nobody decodes: the prompt gets all";
  h.finish();
}

TEST_P(Batching, StepsGrowWhereNothingDecodes) {
  std::mt19937_64 random(16);
  Harness h({.groups = GetParam(),
             .max_batch = 4,
             .step_tokens = 16,
             .alone_tokens = 64,
             .alone_seconds = 1e9,
             .max_extend = 64,
             .state_stride = kNoStride});
  h.submit({.prompt = random_prompt(random, 500), .max_tokens = 40});
  for (const int rows : {16, 32, 64, 64}) {
    h.step();
    EXPECT_EQ(h.last().n_rows, rows);
  }
  while (h.snapshot().generated_tokens < 1) h.step();
  h.submit({.prompt = random_prompt(random, 100), .max_tokens = 3});
  h.step();
  EXPECT_EQ(h.last().n_rows, 1 + 8) << "beside a stream the small budget holds";
  h.finish();
}

TEST_P(Batching, StepsThatTakeTooLongDoNotGrow) {
  std::mt19937_64 random(17);
  Harness h({.groups = GetParam(),
             .max_batch = 4,
             .step_tokens = 16,
             .alone_tokens = 64,
             .alone_seconds = 0,
             .max_extend = 64,
             .state_stride = kNoStride});
  h.submit({.prompt = random_prompt(random, 200), .max_tokens = 1});
  while (h.snapshot().generated_tokens < 1) {
    h.step();
    EXPECT_LE(h.last().n_rows, 16);
  }
  h.finish();
}

TEST_P(Batching, APromptGetsABlockOfRowsBesideDecodes) {
  std::mt19937_64 random(14);
  Harness h({.groups = GetParam(), .block_size = 16, .max_batch = 4, .step_tokens = 24});
  h.submit({.prompt = random_prompt(random, 10), .max_tokens = 30});
  while (h.snapshot().generated_tokens < 1) h.step();
  h.submit({.prompt = random_prompt(random, 200), .max_tokens = 3});
  for (int step = 0; step < 5; ++step) {
    h.step();
    EXPECT_EQ(h.last().n_rows, 1 + 16);
  }
  h.finish();
}

TEST_P(Batching, TheSmallestBudgetLetsAPromptThroughBesideAFullBatch) {
  std::mt19937_64 random(15);
  Harness h({.groups = GetParam(), .max_batch = 4, .step_tokens = 1});
  for (std::uint64_t i = 0; i < 3; ++i) {
    h.submit({.prompt = random_prompt(random, 6), .max_tokens = 200, .seed = 10 * i});
  }
  while (h.snapshot().computed_tokens < 3 * 6) h.step();
  const auto late = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 1});
  for (int i = 0; i < 15; ++i) {
    EXPECT_FALSE(h.result(late).done);
    h.step();
    EXPECT_EQ(h.last().n_rows, 3 + 2);
  }
  EXPECT_TRUE(h.result(late).done);
  h.finish();
}

TEST_P(Batching, AShortPromptGetsThroughBehindALongOne) {
  std::mt19937_64 random(4);
  Harness h({.groups = GetParam()});
  const auto first = h.submit({.prompt = random_prompt(random, 2000), .max_tokens = 2});
  const auto second = h.submit({.prompt = random_prompt(random, 12), .max_tokens = 2});
  h.finish();
  EXPECT_EQ(h.result(second).first_step, 1);
  EXPECT_GT(h.result(first).first_step, 30);
}

TEST_P(Batching, SamplesForkThePromptWithoutCopying) {
  std::mt19937_64 random(5);
  Harness h({.groups = GetParam(), .step_tokens = 32});
  const auto id = h.submit({.prompt = random_prompt(random, 83), .max_tokens = 30, .n = 4, .seed = 100});
  while (h.result(id).first_step < 0) h.step();
  EXPECT_EQ(h.snapshot().running_sequences, 4);
  EXPECT_EQ(h.snapshot().cache.cow_forks, 0);
  EXPECT_EQ(h.snapshot().cache.max_refs, 4);
  EXPECT_EQ(h.snapshot().computed_tokens, 83) << "one prefill for all samples";
  h.step();
  // Three of the four copy the shared tail on their first write; the last owner writes in place.
  EXPECT_EQ(h.snapshot().cache.cow_forks, 3 * static_cast<int>(make_groups(GetParam()).size()));
  h.finish();
  const auto& samples = h.result(id).samples;
  EXPECT_NE(samples[0].tokens, samples[1].tokens);
  EXPECT_EQ(h.result(id).usage.completion_tokens, 4 * 30);
}

TEST_P(Batching, SamplesThatEndAtOnceLeaveTheOthersAlone) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam()});
  h.submit({.prompt = random_prompt(random, 21), .max_tokens = 1, .n = 3});
  h.submit({.prompt = random_prompt(random, 24), .n = 3, .seed = 50, .stop_after = 9});
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 2);
}

TEST_P(Batching, TheContextEndsAnAnswer) {
  std::mt19937_64 random(7);
  Harness h({.groups = GetParam(), .context_length = 64});
  const auto id = h.submit({.prompt = random_prompt(random, 50)});
  const auto full = h.submit({.prompt = random_prompt(random, 63)});
  const auto over = h.submit({.prompt = random_prompt(random, 64)});
  h.finish();
  EXPECT_EQ(h.result(id).samples[0].tokens.size(), 14u);
  EXPECT_EQ(h.result(id).samples[0].finish, Finish::kLength);
  EXPECT_EQ(h.result(full).samples[0].tokens.size(), 1u);
  EXPECT_EQ(h.result(over).refusal, Refusal::kTooLong);
  EXPECT_THAT(h.result(over).message, ::testing::HasSubstr("64 tokens"));
}

TEST_P(Batching, WhatCanNeverFitIsRefusedAtOnceWithFigures) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam(), .num_blocks = 101, .max_batch = 4});
  std::int32_t longest = 1;  // that fits once
  while (h.cache().blocks_needed(longest + 1, 1) <= 100) ++longest;
  const auto big = h.submit({.prompt = random_prompt(random, 1000)});
  const auto many = h.submit({.prompt = random_prompt(random, 10), .n = 5});
  const auto wide = h.submit({.prompt = random_prompt(random, static_cast<std::size_t>(longest)), .n = 4});
  const auto empty = h.submit({});
  const auto fits = h.submit({.prompt = random_prompt(random, 40), .max_tokens = 3});
  h.step();
  EXPECT_EQ(h.result(big).refusal, Refusal::kTooLong);
  EXPECT_THAT(h.result(big).message, ::testing::HasSubstr("100"));
  EXPECT_EQ(h.result(many).refusal, Refusal::kTooManySamples);
  EXPECT_EQ(h.result(wide).refusal, Refusal::kTooManySamples) << "one sample would fit";
  EXPECT_TRUE(h.result(empty).refusal.has_value());
  EXPECT_FALSE(h.result(fits).done);
  h.finish();
  EXPECT_EQ(h.snapshot().requests_refused, 4);
  EXPECT_EQ(h.snapshot().requests_submitted, 5);
}

TEST_P(Batching, TheQueueHasALimit) {
  std::mt19937_64 random(9);
  Harness h({.groups = GetParam(), .max_batch = 2, .max_waiting = 3});
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 8; ++i) ids.push_back(h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4}));
  h.step();
  EXPECT_EQ(h.snapshot().running_requests, 2);
  EXPECT_EQ(h.snapshot().waiting_requests, 3);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_FALSE(h.result(ids[i]).done);
  for (std::size_t i = 5; i < 8; ++i) EXPECT_EQ(h.result(ids[i]).refusal, Refusal::kQueueFull);
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 5);
}

// Who is turned away learns when to come back: by then the queue should have drained, at the recent pace.
TEST_P(Batching, AFullQueueSaysWhenToComeBack) {
  std::mt19937_64 random(16);
  const auto retry_seconds = [&](std::chrono::milliseconds each) {
    Harness h({.groups = GetParam(), .max_batch = 1, .max_waiting = 20});
    for (int i = 0; i < 20; ++i) h.submit({.prompt = random_prompt(random, 5), .max_tokens = 1});
    for (int i = 0; i < 10; ++i) {
      h.step();
      h.now += each;
    }
    for (int i = 0; i < 12; ++i) h.submit({.prompt = random_prompt(random, 5), .max_tokens = 1});
    h.step();
    std::vector<double> told;
    for (const auto& [id, result] : h.results()) {
      if (result.refusal == Refusal::kQueueFull) told.push_back(result.retry_seconds);
    }
    h.finish();
    EXPECT_EQ(told.size(), 1u) << "20 - 11 wait, so 11 more may";
    return told.empty() ? 0 : told[0];
  };
  EXPECT_NEAR(retry_seconds(std::chrono::milliseconds(500)), 20 * 0.5, 2);
  EXPECT_EQ(retry_seconds(std::chrono::milliseconds(1)), 1) << "nobody should hammer";
  EXPECT_EQ(retry_seconds(std::chrono::minutes(10)), 60) << "the pace may change";
}

// Nobody waited meanwhile, so that the time says nothing about the pace.
TEST_P(Batching, AnIdleHourDoesNotCountForThePace) {
  std::mt19937_64 random(18);
  Harness h({.groups = GetParam(), .max_batch = 1, .max_waiting = 20});
  const auto submit = [&](int n) {
    for (int i = 0; i < n; ++i) h.submit({.prompt = random_prompt(random, 5), .max_tokens = 1});
  };
  for (int i = 0; i < 5; ++i) {
    submit(1);
    h.step();
  }
  h.now += std::chrono::hours(1);
  submit(20);
  for (int i = 0; i < 10; ++i) {
    h.step();
    h.now += std::chrono::milliseconds(500);
  }
  submit(12);
  h.finish();
  std::vector<double> told;
  for (const auto& [id, result] : h.results()) {
    if (result.refusal == Refusal::kQueueFull) told.push_back(result.retry_seconds);
  }
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NEAR(told[0], 20 * 0.5, 2);
}

// Requests that wait already stay, whatever comes.
TEST_P(Batching, OnlyNewcomersAreTurnedAway) {
  std::mt19937_64 random(17);
  Harness h({.groups = GetParam(), .max_batch = 1, .max_waiting = 2});
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4}));
  h.step();
  const auto urgent = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 4, .priority = -1});
  h.step();
  EXPECT_EQ(h.result(urgent).refusal, Refusal::kQueueFull);
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 3);
}

TEST_P(Batching, AtMostMaxBatchSequencesRun) {
  std::mt19937_64 random(10);
  Harness h({.groups = GetParam(), .max_batch = 5, .step_tokens = 16});
  for (int i = 0; i < 12; ++i) {
    h.submit({.prompt = random_prompt(random, 5 + static_cast<std::size_t>(i) * 3), .max_tokens = 6, .n = 1 + i % 3});
  }
  while (h.step()) EXPECT_LE(h.snapshot().running_sequences, 5);
  h.finish();
}

TEST_P(Batching, SharingOffSharesNothingAndNobodyWaits) {
  std::mt19937_64 random(11);
  Harness h({.groups = GetParam(), .step_tokens = 512, .share = false});
  const auto prompt = random_prompt(random, 50);
  for (std::uint64_t i = 0; i < 4; ++i) h.submit({.prompt = prompt, .max_tokens = 10, .seed = i});
  h.step();
  EXPECT_EQ(h.snapshot().running_requests, 4);
  h.finish();
  EXPECT_EQ(h.snapshot().computed_tokens, 200);
  EXPECT_EQ(h.snapshot().cached_tokens, 0);
  EXPECT_EQ(h.snapshot().cache.cached, 0);
}

TEST_P(Batching, SaltsAreApart) {
  std::mt19937_64 random(12);
  Harness h({.groups = GetParam(), .step_tokens = 512});
  const auto prompt = random_prompt(random, 50);
  h.submit({.prompt = prompt, .max_tokens = 10, .salt = "a"});
  h.submit({.prompt = prompt, .max_tokens = 10, .seed = 2, .salt = "b"});
  h.step();
  EXPECT_EQ(h.snapshot().running_requests, 2) << "nobody waits for another tenant";
  h.finish();
  EXPECT_EQ(h.snapshot().computed_tokens, 100);
}

// A step may take seconds. Whoever asks meanwhile must not be told that the server is idle.
TEST_P(Batching, TheSnapshotShowsTheStepInHand) {
  std::mt19937_64 random(13);
  Harness h({.groups = GetParam(), .step_tokens = 512});
  int looks = 0;
  h.executor().during_forward([&] {
    ++looks;
    EXPECT_EQ(h.snapshot().running_requests, 1);
    EXPECT_GT(h.snapshot().cache.in_use, 0);
  });
  h.submit({.prompt = random_prompt(random, 50), .max_tokens = 3});
  h.finish();
  EXPECT_EQ(looks, 3);
}

COPPICE_FOR_ALL_GROUPS(Batching);

}  // namespace
}  // namespace coppice::testing
