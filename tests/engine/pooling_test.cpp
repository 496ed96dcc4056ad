// Embeddings of prompts: the right hidden states, each once, whatever the chunks, the cache and preemption do; no
// logits for them; what they take from the cache, and what others find there.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "engine/harness.h"
#include "engine/mailbox.h"

namespace coppice::testing {
namespace {

using engine::MatchEnded;
using engine::Refusal;
using sampling::Finish;
using Pooling = PerGroups;

constexpr auto kLast = engine::Pooling::kLast, kMean = engine::Pooling::kMean;

Submission embed(Prompt prompt, engine::Pooling pooling) {
  return {.prompt = std::move(prompt), .only_prompt = true, .pooling = pooling};
}

TEST_P(Pooling, WhateverTheChunksAndTheCompany) {
  for (const int step_tokens : {9, 23, 64}) {
    SCOPED_TRACE(step_tokens);
    std::mt19937_64 random(1);
    Harness h({.groups = GetParam(), .max_batch = 8, .step_tokens = step_tokens});
    const Prompt shared = random_prompt(random, 37);
    for (const std::size_t own : {1, 7, 8, 34, 150}) {
      for (const auto kind : {kMean, kLast}) h.submit(embed(shared + random_prompt(random, own), kind));
      h.submit({.prompt = shared + random_prompt(random, own), .max_tokens = 5});
      h.submit({.prompt = shared + random_prompt(random, own), .max_tokens = 2, .scored_from = 20, .n_top = 1});
    }
    for (const auto kind : {kMean, kLast}) h.submit(embed({5}, kind));
    h.finish();
    EXPECT_EQ(h.snapshot().requests_finished, 22);
  }
}

TEST_P(Pooling, OnlyTheWantedHiddenStatesAndNoLogits) {
  for (const auto [kind, wanted] : {std::pair(kLast, 1U), std::pair(kMean, 200U)}) {
    std::mt19937_64 random(2);
    Harness h({.groups = GetParam()});
    const auto id = h.submit(embed(random_prompt(random, 200), kind));
    std::size_t logits = 0, hidden = 0;
    while (h.step()) {
      logits += h.last().n_logits;
      hidden += h.last().n_hidden;
    }
    h.finish();
    EXPECT_EQ(logits, 0U);
    EXPECT_EQ(hidden, wanted);
    EXPECT_EQ(h.result(id).usage.completion_tokens, 0);
    EXPECT_EQ(h.snapshot().generated_tokens, 0);
  }
}

TEST_P(Pooling, TheLastTokensStandsOnTheCacheAndAMeanDoesNot) {
  std::mt19937_64 random(3);
  Harness h({.groups = GetParam()});
  const Prompt prompt = random_prompt(random, 100);
  h.submit({.prompt = prompt, .max_tokens = 1});
  h.finish();
  Submission mean = embed(prompt, kMean), last = embed(prompt, kLast);
  mean.cache_report = last.cache_report = true;
  const auto of_mean = h.submit(mean), of_last = h.submit(last);
  h.finish();
  EXPECT_EQ(h.result(of_mean).usage.cached_tokens, 0);
  EXPECT_EQ(h.result(of_mean).report->ended, MatchEnded::kPooled);
  EXPECT_EQ(h.result(of_last).usage.cached_tokens, 99);
  EXPECT_EQ(h.result(of_last).report->ended, MatchEnded::kLastToken);
}

TEST_P(Pooling, WhatIsComputedServesOthers) {
  for (const auto kind : {kLast, kMean}) {
    std::mt19937_64 random(4);
    Harness h({.groups = GetParam(), .step_tokens = 20});
    const Prompt prompt = random_prompt(random, 100);
    h.submit(embed(prompt, kind));
    h.step();
    const auto meanwhile = h.submit({.prompt = prompt, .max_tokens = 1});
    h.finish();
    EXPECT_EQ(h.result(meanwhile).usage.cached_tokens, 96) << "it waited for the blocks";
    const auto behind = h.submit({.prompt = prompt + Prompt{7}, .max_tokens = 1});
    h.finish();
    EXPECT_EQ(h.result(behind).usage.cached_tokens, 100);
  }
}

// A preempted prompt comes back behind what it has pooled, or computes it again without counting it twice.
TEST_P(Pooling, PreemptedPromptsCountEachTokenOnce) {
  std::int64_t preemptions = 0, resumptions = 0;
  for (unsigned run = 0; run < 80; ++run) {
    const int blocks = 14 + static_cast<int>(run / 4), depth = static_cast<int>(run / 2 % 2);
    SCOPED_TRACE(::testing::Message() << blocks << " blocks, depth " << depth);
    std::mt19937_64 random(9 + run % 2);
    Harness h({.groups = GetParam(),
               .num_blocks = blocks * static_cast<std::int32_t>(make_groups(GetParam()).size()) + 1,
               .max_batch = 8,
               .step_tokens = 20,
               .max_extend = 8,
               .growth_room = false,
               .depth = depth,
               .seed = run});
    const Prompt shared = random_prompt(random, 20);
    for (std::uint64_t i = 0; i < 8; ++i) {
      const Prompt prompt = shared + random_prompt(random, 10 + 7 * i);
      h.submit(i % 2 == 0 ? Submission{.prompt = prompt, .max_tokens = 40, .seed = i}
                          : embed(prompt, i % 4 == 1 ? kMean : kLast));
    }
    std::size_t pooled = 0, wanted = 0;
    for (const auto& [id, result] : h.results()) {
      if (result.submission.pooling) wanted += result.submission.pooling == kMean ? result.submission.prompt.size() : 1;
    }
    h.finish();
    for (const auto& step : h.executor().steps()) pooled += step.n_hidden;
    if (depth == 0) EXPECT_EQ(pooled, wanted);
    EXPECT_GE(pooled, wanted) << "what a preempted one has in flight is thrown away";
    EXPECT_EQ(h.snapshot().requests_finished, 8);
    preemptions += h.snapshot().preemptions;
    resumptions += h.snapshot().resumptions;
    if (HasFailure()) return;
  }
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(resumptions, 10);
}

// Cancelled, out of time, failed, preempted: at any moment.
TEST_P(Pooling, RandomEnds) {
  const std::uint64_t seed = test_seed(10);
  std::mt19937_64 random(seed);
  const auto pick = [&](int from, int to) {
    return from + static_cast<int>(random() % static_cast<unsigned>(to - from + 1));
  };
  Transitions met = {{"finished", 0}, {"cancelled", 0}, {"timed out", 0}, {"failed", 0}, {"preempted", 0}};
  for (std::int64_t round = operations_wanted(60); round > 0; --round) {
    Harness h({.groups = GetParam(),
               .num_blocks = pick(18, 40) * static_cast<std::int32_t>(make_groups(GetParam()).size()) + 1,
               .max_batch = 6,
               .step_tokens = pick(8, 40),
               .max_extend = 16,
               .growth_room = false,
               .depth = static_cast<int>(round % 2),
               .seed = random()});
    const std::vector<Prompt> prompts = {random_prompt(random, 40), random_prompt(random, 90)};
    for (int i = 0; i < 25; ++i) {
      const Prompt& base = prompts[random() % 2];
      const Prompt begin(base.begin(), base.begin() + pick(1, static_cast<int>(base.size())));
      const Prompt prompt = begin + random_prompt(random, static_cast<std::size_t>(pick(0, 20)));
      Submission asked = pick(0, 2) > 0 ? embed(prompt, pick(0, 1) == 0 ? kLast : kMean)
                                        : Submission{.prompt = prompt, .max_tokens = pick(1, 80), .seed = random()};
      asked.priority = pick(-1, 1);
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

COPPICE_FOR_ALL_GROUPS(Pooling);

// Sums and the embedding on its way to the client count, from the moment the request comes.
TEST(PoolWeight, CountsWhatIsSummedAndSent) {
  const auto weight = [](std::optional<engine::Pooling> pooling) {
    return engine::weight(make_request(0, {.prompt = Prompt(100, 7), .only_prompt = true, .pooling = pooling}));
  };
  EXPECT_EQ(engine::pooled_weight(kFakeEmbd), 3U * kFakeEmbd) << "a double and a float for each value, in tokens";
  EXPECT_EQ(weight(kMean), weight({}) + engine::pooled_weight(kFakeEmbd));
  EXPECT_EQ(weight(kLast), weight({}) + engine::pooled_weight(kFakeEmbd));
  const Submission asked = embed(Prompt(100, 7), kMean);
  Harness h({.max_weight = 2 * weight(kMean) - 1});
  const auto first = h.submit(asked), second = h.submit(asked);
  h.finish();
  EXPECT_FALSE(h.result(first).refusal);
  EXPECT_EQ(h.result(second).refusal, Refusal::kQueueFull);
  h.submit(asked);
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 2);
}

}  // namespace
}  // namespace coppice::testing
