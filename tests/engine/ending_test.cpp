// How requests end before their time: cancellation in every phase, deadlines, failed steps, stop().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

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

TEST_P(Ending, WhoGivesUpInTheQueueHasWaited) {
  std::mt19937_64 random(2);
  Harness h({.groups = GetParam(), .max_batch = 1});
  const auto soon = h.now + std::chrono::seconds(3);
  h.submit({.prompt = random_prompt(random, 30), .deadline = soon});
  const auto cancelled = h.submit({.prompt = random_prompt(random, 30)});
  h.submit({.prompt = random_prompt(random, 30), .deadline = soon});
  h.step();
  h.now += std::chrono::seconds(2);
  h.cancel(cancelled);
  h.step();
  h.now = soon;
  h.finish();
  EXPECT_EQ(h.snapshot().requests_timed_out, 2);
  const auto waits = h.snapshot().queue_seconds;
  EXPECT_EQ(std::reduce(waits.counts().begin(), waits.counts().end()), 3);
  EXPECT_DOUBLE_EQ(waits.sum(), 0 + 2 + 3);
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
  const auto soon = h.now + std::chrono::seconds(2);
  const auto late = h.submit({.prompt = random_prompt(random, 30), .deadline = h.now});
  // No limit, and a pool for thousands of tokens: only the deadline ends these.
  const auto running = h.submit({.prompt = random_prompt(random, 30), .n = 2, .deadline = soon});
  const auto waiting = h.submit({.prompt = random_prompt(random, 30), .n = 2, .deadline = soon});
  const auto patient = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 5});
  h.step();
  EXPECT_EQ(h.result(late).refusal, Refusal::kTimeout);
  EXPECT_THAT(h.result(late).message, ::testing::HasSubstr("after 0.0 s it was still in the queue"));
  for (int i = 0; i < 20; ++i) h.step();
  EXPECT_FALSE(h.result(running).done) << "the clock stands still";
  h.now = soon;
  h.step();
  EXPECT_EQ(h.result(waiting).refusal, Refusal::kTimeout);
  EXPECT_THAT(h.result(waiting).message, ::testing::HasSubstr("2.0 s"));
  for (const auto& sample : h.result(running).samples) {
    EXPECT_EQ(sample.finish, Finish::kTimeout);
    EXPECT_EQ(sample.tokens.size(), 21u) << "what was generated by then goes out";
  }
  h.finish();
  EXPECT_EQ(h.result(patient).samples[0].finish, Finish::kLength);
  EXPECT_EQ(h.snapshot().requests_timed_out, 3);
  EXPECT_EQ(h.snapshot().requests_cancelled, 0);
}

TEST_P(Ending, ADeadlineWithinAStepLetsNoTokenOut) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam()});
  const auto late = h.submit({.prompt = random_prompt(random, 20), .deadline = h.now + std::chrono::seconds(1)});
  const auto siblings =
      h.submit({.prompt = random_prompt(random, 20), .n = 3, .deadline = h.now + std::chrono::seconds(1)});
  const auto patient = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 3});
  h.executor().during_forward([&] { h.now += std::chrono::seconds(2); });
  h.step();
  EXPECT_EQ(h.result(late).refusal, Refusal::kTimeout);
  EXPECT_THAT(h.result(late).message, ::testing::HasSubstr("after 2.0 s it had no token"));
  EXPECT_EQ(h.result(siblings).refusal, Refusal::kTimeout);
  EXPECT_EQ(h.result(patient).samples[0].tokens.size(), 1U);
  h.finish();
}

TEST_P(Ending, ARequestWaitsFromItsSubmissionNotFromTheNextStep) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam()});
  h.submit({.prompt = random_prompt(random, 20), .max_tokens = 2});
  h.now += std::chrono::seconds(3);  // a step is under way
  h.step();
  EXPECT_DOUBLE_EQ(h.snapshot().queue_seconds.sum(), 3);
  h.submit({.prompt = random_prompt(random, 20), .deadline = h.now + std::chrono::seconds(1)});
  h.now += std::chrono::seconds(4);
  h.step();
  EXPECT_DOUBLE_EQ(h.snapshot().queue_seconds.sum(), 3 + 4);
  h.finish();
}

TEST_P(Ending, ADeadlineInThePrefillIsARefusal) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam(), .step_tokens = 40});
  const auto prompt = random_prompt(random, 300);
  const auto leader = h.submit({.prompt = prompt, .deadline = h.now + std::chrono::seconds(1)});
  const auto follower = h.submit({.prompt = prompt, .max_tokens = 3, .seed = 2});
  h.step();
  h.step();
  EXPECT_EQ(h.snapshot().following_requests, 1);
  h.now += std::chrono::seconds(1);
  h.step();
  EXPECT_EQ(h.result(leader).refusal, Refusal::kTimeout);
  EXPECT_THAT(h.result(leader).message, ::testing::HasSubstr("had no token yet"));
  h.finish();
  EXPECT_EQ(h.result(follower).usage.cached_tokens, 80) << "what the leader had computed";
}

/// Counts those that ended by a failed step, and says how.
int count_failed(const Harness& h) {
  int failed = 0;
  for (const auto& [id, result] : h.results()) {
    const bool streamed = std::ranges::any_of(result.samples, [](const auto& s) { return s.finish == Finish::kError; });
    if (result.refusal) EXPECT_EQ(result.refusal, Refusal::kFailed);
    if (streamed || result.refusal) EXPECT_THAT(result.message, ::testing::HasSubstr("told to fail"));
    failed += streamed || result.refusal;
  }
  return failed;
}

// Every step of a run fails in turn. The prompts share a beginning, so that some wait for another's prefill; more come
// than run at once.
TEST_P(Ending, AFailedStepEndsItsBatchAndNobodyElse) {
  std::map<std::string, int> met;
  for (int k = 0;; ++k) {
    SCOPED_TRACE("step " + std::to_string(k) + " fails");
    std::mt19937_64 random(7);
    Harness h({.groups = GetParam(), .max_batch = 3, .step_tokens = 16});
    h.executor().fail_at(k);
    engine::Snapshot in_step;
    h.executor().during_forward([&] {
      if (std::ssize(h.executor().steps()) == k) in_step = h.snapshot();
    });
    const auto shared = random_prompt(random, 40);
    for (std::uint64_t i = 0; i < 5; ++i) {
      h.submit({.prompt = shared + random_prompt(random, 9), .max_tokens = 9, .n = i == 1 ? 2 : 1, .seed = i});
    }
    while (std::ssize(h.executor().steps()) <= k && h.step()) {
    }
    if (std::ssize(h.executor().steps()) <= k) break;  // the run is over before

    const auto& sequences = h.last().sequences;
    const auto prompts = std::ranges::count_if(sequences, [](const auto& s) { return s.n_rows > 1; });
    ++met[prompts == 0 ? "decodes" : prompts == std::ssize(sequences) ? "prompts" : "both"];
    met["followers"] += in_step.following_requests > 0;
    const int failed = count_failed(h);
    EXPECT_GT(failed, 0);
    if (std::ssize(sequences) == in_step.running_sequences) {
      EXPECT_EQ(failed, in_step.running_requests);
      EXPECT_EQ(h.snapshot().cache.in_use, 0) << "they give their blocks back at once";
    }

    h.finish();
    EXPECT_EQ(count_failed(h), failed) << "one step failed, not two";
    EXPECT_EQ(h.snapshot().requests_failed, failed);
    EXPECT_EQ(h.snapshot().requests_finished, 5 - failed);
    // The engine lives, and nothing of the failed step is found in the tree.
    h.submit({.prompt = h.result(1).submission.prompt, .max_tokens = 9, .seed = 77});
    h.submit({.prompt = h.result(2).submission.prompt, .max_tokens = 9, .n = 3, .seed = 78});
    h.finish();
    EXPECT_EQ(h.snapshot().requests_finished, 5 - failed + 2);
    if (HasFailure()) return;
  }
  for (const char* kind : {"decodes", "prompts", "both", "followers"}) {
    EXPECT_GT(met[kind], 0) << "no step with these failed: " << kind;
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

// A device's memory that runs out may be there for the next one.
TEST_P(Ending, TooLittleMemoryOfADeviceIsNoFailure) {
  std::mt19937_64 random(9);
  Harness h({.groups = GetParam()});
  h.executor().during_forward([] { throw executor::OutOfMemory("too little GPU memory for logits"); });
  const auto refused = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 5});
  h.step();
  EXPECT_EQ(h.result(refused).refusal, engine::Refusal::kNoMemory);
  EXPECT_EQ(h.result(refused).message, "too little GPU memory for logits");
  h.executor().during_forward(nullptr);
  h.finish();
}

// Memory that runs out in the part of a step that its requests share fails these; so it is with each digest in turn,
// most of which are made when a step is published.
TEST_P(Ending, ADigestThatCannotBeHadFailsItsStepOnly) {
  const auto n_groups = static_cast<std::int32_t>(make_groups(GetParam()).size());
  int digests = 0;
  for (bool failed = true; failed && !HasFailure();) {
    SCOPED_TRACE("digest " + std::to_string(++digests));
    std::mt19937_64 random(11);
    int left = digests;
    const auto hash = [&](std::span<const std::byte> bytes) {
      if (--left == 0) throw std::bad_alloc();
      return kv::sha256(bytes);
    };
    Harness h({.groups = GetParam(),
               .num_blocks = 1 + 11 * n_groups,
               .max_batch = 5,
               .step_tokens = 24,
               .max_extend = 16,
               .growth_room = false,
               .hash = hash});
    const auto shared = random_prompt(random, 21);
    for (int i = 0; i < 9; ++i) {
      h.submit({.prompt = i % 3 == 2 ? random_prompt(random, 30) : shared + random_prompt(random, 4 + random() % 9),
                .max_tokens = static_cast<std::int32_t>(16 + random() % 16),
                .n = i % 4 == 1 ? 2 : 1,
                .seed = random(),
                .cache_report = i % 2 == 0});
      h.step();
    }
    h.finish();
    const auto figures = h.snapshot();
    EXPECT_EQ(figures.requests_finished + figures.requests_failed, 9);
    for (const auto& [id, result] : h.results()) {
      if (!result.message.empty()) EXPECT_EQ(result.message, "out of memory");
    }
    failed = left <= 0;
    if (!failed) EXPECT_EQ(figures.requests_failed, 0);
  }
  EXPECT_GT(digests, 50);
}

// Whatever no request can answer for ends the engine.
TEST(EndingOfTheEngine, ASinkThatThrowsEndsIt) {
  const HarnessConfig config;
  FakeExecutor executor(cache_config(config));
  engine::Engine engine(kv::Cache(cache_config(config)), executor, engine_config(config),
                        [](std::vector<engine::Event>&&) { throw std::bad_alloc(); });
  engine.submit(make_request(engine.next_id(), {.prompt = {1, 2, 3}, .max_tokens = 2}));
  EXPECT_THROW(engine.run(), std::bad_alloc);
}

// The client gets one error for all samples: so all of them end, and the request counts as failed.
TEST_P(Ending, ASamplerThatThrowsFailsItsRequestOnly) {
  std::mt19937_64 random(9);
  for (const int tokens : {0, 5}) {
    for (const bool memory : {false, true}) {
      Harness h({.groups = GetParam()});
      const auto id = h.submit({.prompt = random_prompt(random, 30),
                                .max_tokens = 9,
                                .n = 2,
                                .throw_at = tokens,
                                .throw_bad_alloc = memory});
      const auto other = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 9});
      h.finish();
      const Result& failed = h.result(id);
      EXPECT_THAT(failed.message, ::testing::HasSubstr(memory ? "out of memory" : "told to fail"));
      EXPECT_EQ(failed.samples[0].tokens.size(), static_cast<std::size_t>(tokens));
      if (tokens == 0) {
        EXPECT_EQ(failed.refusal, Refusal::kFailed);
      } else {
        for (const auto& sample : failed.samples) EXPECT_EQ(sample.finish, Finish::kError);
      }
      EXPECT_EQ(h.result(other).samples[0].finish, Finish::kLength);
      const auto figures = h.snapshot();
      EXPECT_EQ(figures.requests_failed, 1);
      EXPECT_EQ(figures.requests_finished, 1);
      EXPECT_EQ(figures.samples_cut, 1) << "only the other one came to its end";
    }
  }
}

TEST_P(Ending, WhatNoTokenSatisfiesIsNoFailure) {
  std::mt19937_64 random(9);
  for (const int tokens : {0, 5}) {
    Harness h({.groups = GetParam()});
    const auto id =
        h.submit({.prompt = random_prompt(random, 30), .max_tokens = 9, .throw_at = tokens, .unsatisfiable = true});
    h.run();
    EXPECT_EQ(h.result(id).message, "no token is allowed");
    EXPECT_EQ(h.snapshot().requests_failed, 0);
    EXPECT_EQ(h.snapshot().requests_refused, 1);
  }
}

// The text so far is the answer of who runs out of time; without its end it is none.
TEST_P(Ending, WhoseTextCannotBeHadFails) {
  std::mt19937_64 random(10);
  Harness h({.groups = GetParam()});
  const auto soon = h.now + std::chrono::seconds(1);
  const auto id = h.submit({.prompt = random_prompt(random, 30), .n = 2, .fail_flush = true, .deadline = soon});
  const auto cancelled = h.submit({.prompt = random_prompt(random, 30), .fail_flush = true});
  const auto other = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 9});
  for (int i = 0; i < 4; ++i) h.step();
  h.now = soon;
  h.cancel(cancelled);
  h.run();
  EXPECT_EQ(h.result(id).samples[0].finish, Finish::kError);
  EXPECT_THAT(h.result(id).message, ::testing::HasSubstr("told to fail"));
  EXPECT_TRUE(h.result(cancelled).done);
  EXPECT_EQ(error_in(h.result(other), h.groups()), "");
  EXPECT_EQ(h.snapshot().requests_failed, 2);
  EXPECT_EQ(h.snapshot().cache.in_use, 0);
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
