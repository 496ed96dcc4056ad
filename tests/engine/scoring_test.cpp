// Log-probabilities of prompts: each wanted token once and right, whatever the chunks, the cache and preemption do;
// logits of few rows at a time; and what others share meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "engine/harness.h"
#include "engine/mailbox.h"

namespace coppice::testing {
namespace {

using engine::MatchEnded;
using engine::Refusal;
using sampling::Finish;
using Scoring = PerGroups;

TEST_P(Scoring, EveryTokenOfThePromptOnceWhateverTheChunks) {
  for (const int step_tokens : {9, 23, 64}) {
    for (const int scored_rows : {1, 3, 8, 0}) {
      SCOPED_TRACE(std::to_string(step_tokens) + " tokens a step, " + std::to_string(scored_rows) + " scored");
      std::mt19937_64 random(1);
      Harness h({.groups = GetParam(), .max_batch = 8, .step_tokens = step_tokens, .scored_rows = scored_rows});
      const Prompt shared = random_prompt(random, 37);
      for (const std::int32_t from : {0, 1, 2, 30, 37, 38, 40, 70, 71, 1000}) {
        for (const int n : {1, 3}) {
          h.submit({.prompt = shared + random_prompt(random, 34),
                    .max_tokens = 3,
                    .only_prompt = from % 2 == 0,
                    .n = n,
                    .scored_from = from,
                    .n_top = from % 3});
        }
      }
      h.submit({.prompt = {5}, .max_tokens = 2, .scored_from = 0});
      h.submit({.prompt = shared, .max_tokens = 5});
      h.finish();
      EXPECT_EQ(h.snapshot().requests_finished, 22);
      if (HasFailure()) return;
    }
  }
}

TEST_P(Scoring, LogitsAreThoseOfFewRowsAtATime) {
  std::mt19937_64 random(2);
  Harness h({.groups = GetParam(), .max_batch = 4, .scored_rows = 10});
  h.submit({.prompt = random_prompt(random, 300), .max_tokens = 1, .scored_from = 200});
  h.submit({.prompt = random_prompt(random, 300), .max_tokens = 1, .scored_from = 1});
  std::size_t most = 0, rows = 0;
  int widest = 0;
  while (h.step()) {
    most = std::max(most, h.last().n_logits);
    rows += h.last().n_logits;
    widest = std::max(widest, h.last().n_rows);
  }
  h.finish();
  EXPECT_LE(most, 10U + 2);
  EXPECT_EQ(rows, 100U + 299 + 2);
  EXPECT_EQ(widest, 64) << "rows before the first scored token have a whole step";
}

TEST_P(Scoring, OthersPayNothing) {
  std::mt19937_64 random(3);
  Harness h({.groups = GetParam()});
  h.submit({.prompt = random_prompt(random, 200), .max_tokens = 4});
  std::size_t rows = 0;
  while (h.step()) rows += h.last().n_logits;
  h.finish();
  EXPECT_EQ(rows, 4U);
}

TEST_P(Scoring, OnlyThePromptMeansNoToken) {
  std::mt19937_64 random(4);
  Harness h({.groups = GetParam()});
  const Prompt prompt = random_prompt(random, 40);
  const auto id = h.submit({.prompt = prompt, .only_prompt = true, .n = 2, .scored_from = 1});
  h.finish();
  for (const auto& sample : h.result(id).samples) EXPECT_EQ(sample.finish, Finish::kLength);
  EXPECT_EQ(h.result(id).usage.completion_tokens, 0);
  EXPECT_EQ(h.snapshot().samples_cut, 2);
  const auto again = h.submit({.prompt = prompt + prompt, .max_tokens = 1});
  h.finish();
  EXPECT_EQ(h.result(again).usage.cached_tokens, 40) << "all of it was published";
}

// Without an answer a prompt may have the whole context, and not a token more; with one it must leave room.
TEST_P(Scoring, OnlyThePromptMayFillTheContext) {
  std::mt19937_64 random(14);
  Harness h({.groups = GetParam(), .context_length = 60});
  const Prompt prompt = random_prompt(random, 60);
  const auto scored = h.submit({.prompt = prompt, .only_prompt = true, .scored_from = 1});
  const auto prefilled = h.submit({.prompt = prompt, .only_prompt = true});
  const auto answered = h.submit({.prompt = prompt, .max_tokens = 1});
  const auto over = h.submit({.prompt = prompt + Prompt{1}, .only_prompt = true});
  h.finish();
  for (const auto id : {scored, prefilled}) {
    EXPECT_FALSE(h.result(id).refusal) << h.result(id).message;
    EXPECT_EQ(h.result(id).samples[0].finish, Finish::kLength);
  }
  EXPECT_EQ(h.result(answered).refusal, Refusal::kTooLong);
  EXPECT_EQ(h.result(answered).message,
            "the prompt has 60 tokens and the context holds 60, of which the answer needs one");
  EXPECT_EQ(h.result(over).refusal, Refusal::kTooLong);
  EXPECT_EQ(h.result(over).message, "the prompt has 61 tokens and the context holds 60");
}

TEST_P(Scoring, MatchingEndsBeforeTheRowThatForetellsTheFirstToken) {
  std::mt19937_64 random(5);
  Harness h({.groups = GetParam()});
  const Prompt prompt = random_prompt(random, 60);
  h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  for (const std::int32_t from : {59, 48, 33, 32, 17, 2, 1, 0, 60, 100}) {
    SCOPED_TRACE(from);
    const auto id = h.submit({.prompt = prompt, .max_tokens = 1, .cache_report = true, .scored_from = from});
    h.finish();
    EXPECT_EQ(h.result(id).usage.cached_tokens, std::clamp(from - 1, 0, 59));
    EXPECT_EQ(h.result(id).report->ended, from < 60 ? MatchEnded::kScored : MatchEnded::kLastToken);
  }
}

TEST_P(Scoring, ContinuationsOfOnePromptShareIt) {
  std::mt19937_64 random(6);
  Harness h({.groups = GetParam(), .step_tokens = 512, .max_extend = 512});
  const Prompt context = random_prompt(random, 83);
  for (int i = 0; i < 20; ++i) {
    h.submit({.prompt = context + random_prompt(random, 9), .only_prompt = true, .scored_from = 83});
  }
  h.finish();
  // Those who wait match what is published in whole blocks of 8, and not the context's last token.
  EXPECT_LE(h.snapshot().computed_tokens, 92 + 19 * (92 - 80));
}

// A scored request waits for a leader only as far as it may use the leader's blocks.
TEST_P(Scoring, NobodyWaitsForBlocksThatItMayNotUse) {
  std::mt19937_64 random(7);
  Harness h({.groups = GetParam(), .max_batch = 4, .step_tokens = 16, .max_extend = 16});
  const Prompt prompt = random_prompt(random, 400);
  const auto leader = h.submit({.prompt = prompt, .max_tokens = 1});
  const auto all = h.submit({.prompt = prompt, .max_tokens = 1, .scored_from = 1});
  const auto late = h.submit({.prompt = prompt, .max_tokens = 1, .scored_from = 20});
  h.step();
  EXPECT_EQ(h.snapshot().following_requests, 1);
  for (int i = 0; i < 3; ++i) h.step();
  EXPECT_EQ(h.snapshot().following_requests, 0);
  EXPECT_FALSE(h.result(leader).done);
  h.finish();
  EXPECT_EQ(h.result(all).usage.cached_tokens, 0);
  EXPECT_EQ(h.result(late).usage.cached_tokens, 19);
}

// More important prompts to score, without end: who came first gets its part of the scored rows.
TEST_P(Scoring, NobodyStarves) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam(), .max_batch = 4, .scored_rows = 8});
  const auto first = h.submit({.prompt = random_prompt(random, 40), .max_tokens = 1, .priority = 1, .scored_from = 1});
  for (int i = 0; i < 60 && !h.result(first).done; ++i) {
    if (i % 2 == 0) h.submit({.prompt = random_prompt(random, 100), .max_tokens = 1, .scored_from = 1});
    h.step();
  }
  EXPECT_TRUE(h.result(first).done);
  h.finish();
}

TEST_P(Scoring, PreemptedPromptsAreScoredOnce) {
  std::int64_t in_prompts = 0;
  for (unsigned run = 0; run < 144; ++run) {
    const int blocks = 14 + static_cast<int>(run / 4), depth = static_cast<int>(run / 2 % 2);
    SCOPED_TRACE(::testing::Message() << blocks << " blocks, depth " << depth);
    std::mt19937_64 random(9 + run % 2);
    Harness h({.groups = GetParam(),
               .num_blocks = scaled(GetParam(), blocks),
               .max_batch = 8,
               .step_tokens = 20,
               .max_extend = 8,
               .growth_room = false,
               .depth = depth,
               .seed = run});
    const Prompt shared = random_prompt(random, 20);
    for (std::uint64_t i = 0; i < 8; ++i) {
      h.submit({.prompt = shared + random_prompt(random, 10 + 7 * i),
                .max_tokens = 40,
                .only_prompt = i % 4 == 3,
                .n = i % 3 == 1 ? 2 : 1,
                .seed = 10 * i,
                .scored_from = static_cast<std::int32_t>(i % 2 * 15)});
    }
    std::int64_t before = 0;
    while (h.step()) {
      const std::int64_t preempted = h.snapshot().preemptions - before;
      before += preempted;
      const auto half = [](const auto& r) {
        return !r.second.prompt.empty() && r.second.prompt.size() < r.second.submission.prompt.size();
      };
      if (preempted > 0) in_prompts += std::ranges::any_of(h.results(), half) ? 1 : 0;
    }
    h.finish();
    EXPECT_EQ(h.snapshot().requests_finished, 8);
    if (HasFailure()) return;
  }
  EXPECT_GT(in_prompts, 10) << "while a prompt was partly scored";
}

// Cancelled, out of time, failed, preempted: at any moment. Whoever ends well has all, whoever doesn't has a beginning.
TEST_P(Scoring, RandomEnds) {
  const std::uint64_t seed = test_seed(10);
  std::mt19937_64 random(seed);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  Transitions met = {{"finished", 0}, {"cancelled", 0}, {"timed out", 0}, {"failed", 0}, {"preempted", 0}};
  for (std::int64_t round = operations_wanted(60); round > 0; --round) {
    Harness h({.groups = GetParam(),
               .num_blocks = scaled(GetParam(), pick(18, 40)),
               .max_batch = 6,
               .step_tokens = pick(8, 40),
               .scored_rows = pick(1, 20),
               .max_extend = 16,
               .growth_room = false,
               .depth = static_cast<int>(round % 2),
               .seed = random()});
    std::vector<Prompt> prompts = {random_prompt(random, 40), random_prompt(random, 90)};
    for (int i = 0; i < 25; ++i) {
      const Prompt& base = prompts[random() % 2];
      const Prompt begin(base.begin(), base.begin() + pick(1, static_cast<int>(base.size())));
      Submission asked{.prompt = begin + random_prompt(random, static_cast<std::size_t>(pick(0, 20))),
                       .max_tokens = pick(1, 80),
                       .only_prompt = pick(0, 3) == 0,
                       .n = pick(0, 3) == 0 ? 3 : 1,
                       .seed = random(),
                       .throw_at = pick(0, 9) == 0 ? pick(0, 5) : -1,
                       .priority = pick(-1, 1),
                       .n_top = pick(0, 2)};
      if (pick(0, 3) > 0) asked.scored_from = pick(0, static_cast<int>(asked.prompt.size()));
      if (pick(0, 5) == 0) asked.deadline = h.now + std::chrono::seconds(pick(1, 30));
      h.submit(asked);
      if (pick(0, 20) == 0) h.executor().fail_at(static_cast<int>(h.executor().steps().size()) + pick(0, 3));
      for (int steps = pick(0, 3); steps > 0; --steps) {
        h.step();
        h.now += std::chrono::seconds(1);
        if (pick(0, 3) == 0) h.cancel(static_cast<engine::RequestId>(pick(1, i + 1)));
      }
    }
    h.finish();
    const auto figures = h.snapshot();
    met["finished"] += figures.requests_finished;
    met["cancelled"] += figures.requests_cancelled;
    met["timed out"] += figures.requests_timed_out;
    met["failed"] += figures.requests_failed;
    met["preempted"] += figures.preemptions;
    if (HasFailure()) return;
  }
  expect_met(met, 10);
}

COPPICE_FOR_ALL_GROUPS(Scoring);

// The entries on their way to the client count, from the moment the request comes.
TEST(ScoringWeight, CountsWhatTheAnswerHolds) {
  const auto weight = [](std::optional<std::int32_t> from, int n_top) {
    return engine::weight(
        make_request(0, {.prompt = Prompt(100, 7), .max_tokens = 1, .scored_from = from, .n_top = n_top}));
  };
  EXPECT_EQ(weight(1, 0), weight({}, 0) + 100 * engine::scored_weight(0));
  EXPECT_EQ(weight(1, 20), weight({}, 0) + 100 * engine::scored_weight(20));
  const Submission scored{.prompt = Prompt(100, 7), .max_tokens = 1, .scored_from = 1};
  Harness h({.max_weight = 2 * weight(1, 0) - 1});
  const auto first = h.submit(scored), second = h.submit(scored);
  h.finish();
  EXPECT_FALSE(h.result(first).refusal);
  EXPECT_EQ(h.result(second).refusal, Refusal::kQueueFull);
  h.submit(scored);
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 2);
}

}  // namespace
}  // namespace coppice::testing
