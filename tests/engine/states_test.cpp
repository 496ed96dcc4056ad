// Models with recurrent layers: where requests start, what is kept for the next ones, and what they are told. The
// random tests (soak_test and others) run with such layers, too.
#include <gtest/gtest.h>

#include <iostream>

#include "engine/harness.h"
#include "support/sanitized.h"

namespace coppice::testing {
namespace {

HarnessConfig hybrid() {
  return {.groups = Groups::kFullAndRecurrent, .state_stride = kNoStride};
}

/// What a client sends next: the prompt, the answer and something new.
Prompt next_turn(const Result& result, const Prompt& more) {
  return result.submission.prompt + result.samples.front().tokens + more;
}

TEST(States, TheSamePromptStartsAtItsLastWholeBlock) {
  std::mt19937_64 random(1);
  Harness h(hybrid());
  for (const std::size_t length : {5U, 8U, 9U, 16U, 17U, 100U}) {
    const auto prompt = random_prompt(random, length);
    h.submit({.prompt = prompt, .max_tokens = 12});
    h.finish();
    const auto again = h.submit({.prompt = prompt, .max_tokens = 3});
    h.finish();
    EXPECT_EQ(h.result(again).usage.cached_tokens, static_cast<std::int32_t>((length - 1) / 8 * 8)) << length;
  }
}

TEST(States, TheNextTurnStartsWhereTheLastOneEnded) {
  std::mt19937_64 random(2);
  Harness h(hybrid());
  auto id = h.submit({.prompt = random_prompt(random, 50), .max_tokens = 9});
  h.finish();
  for (int turn = 0; turn < 10; ++turn) {
    const auto length = static_cast<std::int32_t>(h.result(id).submission.prompt.size());
    id = h.submit({.prompt = next_turn(h.result(id), random_prompt(random, 11)), .max_tokens = 9});
    h.finish();
    EXPECT_EQ(h.result(id).usage.cached_tokens, length + 8) << "an answer's last token is not computed";
  }
}

// Several go on from one turn, inside its last block; all of them after the first find other text there.
TEST(States, AllBranchesOfATurnStartAtItsEnd) {
  std::mt19937_64 random(3);
  Harness h(hybrid());
  const auto first = h.submit({.prompt = random_prompt(random, 50), .max_tokens = 9});
  h.finish();
  for (int branch = 0; branch < 20; ++branch) {
    const auto id = h.submit({.prompt = next_turn(h.result(first), random_prompt(random, 20, 3)), .max_tokens = 2});
    h.finish();
    EXPECT_GE(h.result(id).usage.cached_tokens, 58) << branch;
  }
}

TEST(States, FollowersStartWhereTheyPart) {
  std::mt19937_64 random(4);
  Harness h(hybrid());
  const auto shared = random_prompt(random, 300);
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 12; ++i) {
    const auto part = static_cast<std::ptrdiff_t>(i < 6 ? 300 : 205);
    ids.push_back(h.submit(
        {.prompt = Prompt(shared.begin(), shared.begin() + part) + random_prompt(random, 20), .max_tokens = 5}));
  }
  h.finish();
  EXPECT_EQ(h.result(ids[0]).usage.cached_tokens, 0);
  for (std::size_t i = 1; i < ids.size(); ++i) {
    EXPECT_EQ(h.result(ids[i]).usage.cached_tokens, i < 6 ? 296 : 200) << i;
  }
}

// Nobody foresaw that texts part there: the second computes the tokens again, and the third finds a state.
TEST(States, APlaceWhereTextsPartedGetsAState) {
  std::mt19937_64 random(5);
  Harness h(hybrid());
  const auto shared = random_prompt(random, 100);
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(h.submit({.prompt = shared + random_prompt(random, 50), .max_tokens = 3, .cache_report = true}));
    h.finish();
  }
  EXPECT_EQ(h.result(ids[1]).usage.cached_tokens, 0);
  EXPECT_EQ(h.result(ids[1]).report->ended, engine::MatchEnded::kNoState);
  EXPECT_EQ(h.result(ids[1]).report->lost_tokens, 100);
  EXPECT_EQ(h.result(ids[2]).usage.cached_tokens, 96);
  EXPECT_EQ(h.result(ids[2]).report->lost_tokens, 4);
}

TEST(States, AreKeptAtEveryStride) {
  std::mt19937_64 random(6);
  HarnessConfig config = hybrid();
  config.state_stride = 64;
  Harness h(config);
  const auto prompt = random_prompt(random, 500);
  h.submit({.prompt = prompt, .max_tokens = 2});
  h.finish();
  EXPECT_EQ(h.snapshot().cache.states_cached, 500 / 64 + 2) << "and before the prompt's end, and at the end";
  for (std::ptrdiff_t part = 70; part < 500; part += 61) {
    const auto id = h.submit({.prompt = Prompt(prompt.begin(), prompt.begin() + part) + Prompt{2007}, .max_tokens = 1});
    h.finish();
    EXPECT_GE(h.result(id).usage.cached_tokens, part / 64 * 64);
  }
}

TEST(States, SamplesPartFromOneState) {
  std::mt19937_64 random(7);
  Harness h(hybrid());
  const auto id = h.submit({.prompt = random_prompt(random, 30), .max_tokens = 20, .n = 5});
  while (h.result(id).first_step < 0) h.step();
  EXPECT_EQ(h.snapshot().computed_tokens, 30);
  h.step();
  EXPECT_EQ(h.snapshot().cache.states_in_use, 5);
  h.finish();
  EXPECT_EQ(h.snapshot().cache.states_in_use, 0);
}

TEST(States, WhatCanNeverFitIsRefusedWithTheFigures) {
  HarnessConfig config = hybrid();
  config.state_pages = 20;
  config.num_blocks = 1 + 3 + 2 + 20;  // three blocks of prompt, one to grow and one to fork, a state
  Harness h(config);
  std::mt19937_64 random(8);
  const auto fits = h.submit({.prompt = random_prompt(random, 24), .max_tokens = 8});
  h.finish();
  EXPECT_FALSE(h.result(fits).refusal);
  const auto again = h.submit({.prompt = h.result(fits).submission.prompt, .max_tokens = 8});
  const auto longer = h.submit({.prompt = random_prompt(random, 25), .max_tokens = 8});
  const auto two = h.submit({.prompt = random_prompt(random, 8), .max_tokens = 8, .n = 2});
  h.finish();
  EXPECT_FALSE(h.result(again).refusal) << "it goes on in the state that was kept";
  EXPECT_EQ(h.result(longer).refusal, engine::Refusal::kTooLong);
  EXPECT_NE(h.result(longer).message.find("needs 26 KV blocks"), std::string::npos) << h.result(longer).message;
  EXPECT_EQ(h.result(two).refusal, engine::Refusal::kTooManySamples);
}

TEST(States, APinHoldsTheStateAtItsEnd) {
  std::mt19937_64 random(9);
  HarnessConfig config = hybrid();
  config.num_blocks = 200;
  config.context_length = 200;
  config.max_batch = 2;
  Harness h(config);
  const auto prompt = random_prompt(random, 100);
  const auto id = h.submit(
      {.prompt = prompt, .max_tokens = 3, .pins = {{.tokens = 45, .ttl = std::chrono::seconds(60), .object = true}}});
  h.finish();
  ASSERT_TRUE(h.result(id).usage.pins.at(0).prefix);
  EXPECT_EQ(h.result(id).usage.pins[0].prefix->pinned_tokens, 40);
  EXPECT_EQ(h.result(id).usage.pins[0].prefix->blocks, 5 + 3);
  for (int i = 0; i < 20; ++i) h.submit({.prompt = random_prompt(random, 150), .max_tokens = 20});
  h.finish();
  EXPECT_GT(h.snapshot().cache.evictions, 200);
  const auto later = h.submit({.prompt = prompt, .max_tokens = 3});
  h.finish();
  EXPECT_EQ(h.result(later).usage.cached_tokens, 40);
}

TEST(States, AStepThatFailsLosesNoKeptState) {
  std::mt19937_64 random(10);
  Harness h(hybrid());
  const auto prompt = random_prompt(random, 100);
  h.submit({.prompt = prompt, .max_tokens = 3});
  h.finish();
  h.executor().fail_at(static_cast<int>(h.executor().steps().size()));
  const auto failed = h.submit({.prompt = prompt, .max_tokens = 3});
  h.run();
  EXPECT_EQ(h.result(failed).refusal, engine::Refusal::kFailed);
  const auto again = h.submit({.prompt = prompt, .max_tokens = 3});
  h.run();
  EXPECT_EQ(h.result(again).usage.cached_tokens, 96);
  EXPECT_EQ(error_in(h.result(again), h.groups()), "");
}

/// Agents: eight sessions of 40 turns, interleaved; half way each parts into three branches. They share a system
/// prompt.
struct Agents {
  double cached = 0;  ///< part of all prompts' tokens
  double known = 0;   ///< ... that an endless cache of keys, values and states at each token would find
  std::int64_t blocks = 0, states = 0;
};

Agents run_agents(std::int32_t num_blocks, std::int32_t stride) {
  std::mt19937_64 random(11);
  Harness h({.groups = Groups::kFullAndRecurrent,
             .num_blocks = num_blocks,
             .max_batch = 8,
             .step_tokens = 256,
             .max_extend = 256,
             .state_pages = 10,
             .state_stride = stride});
  const auto system = random_prompt(random, 60);
  std::vector<Prompt> transcripts(8, system);
  std::int64_t prompts = 0, cached = 0, fresh = 60;
  for (int turn = 0; turn < 40; ++turn) {
    if (turn == 20) {
      const auto sessions = transcripts;
      for (int branch = 1; branch < 3; ++branch)
        transcripts.insert(transcripts.end(), sessions.begin(), sessions.end());
    }
    std::vector<engine::RequestId> ids;
    for (Prompt& transcript : transcripts) {
      const auto n = std::uniform_int_distribution<std::size_t>(5, 45)(random);
      transcript = transcript + random_prompt(random, n);
      fresh += static_cast<std::int64_t>(n);
      ids.push_back(h.submit({.prompt = transcript, .max_tokens = 9, .seed = random()}));
      for (int i = std::uniform_int_distribution<int>(0, 6)(random); i > 0; --i) h.step();
    }
    h.run();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Result& result = h.result(ids[i]);
      EXPECT_EQ(error_in(result, h.groups()), "");
      prompts += result.usage.prompt_tokens;
      cached += result.usage.cached_tokens;
      transcripts[i] = transcripts[i] + result.samples[0].tokens;
    }
  }
  const auto stats = h.snapshot().cache;
  return {.cached = static_cast<double>(cached) / static_cast<double>(prompts),
          .known = 1 - static_cast<double>(fresh) / static_cast<double>(prompts),
          .blocks = stats.total - stats.free,
          .states = stats.states_cached};
}

TEST(States, AgentsFindNineTenthsInHalfTheRoom) {
  if (test::kSanitized) GTEST_SKIP() << "a ratio, which is the same there";
  const Agents all = run_agents(60000, kNoStride);
  std::cout << "everything: " << all.blocks << " blocks, " << all.states << " states, " << all.cached << " cached of "
            << all.known << std::endl;
  const Agents half = run_agents(static_cast<std::int32_t>(all.blocks / 2), 400);
  std::cout << "half: " << half.cached << ", " << half.states << " states" << std::endl;
  EXPECT_GE(half.cached, 0.9);
}

}  // namespace
}  // namespace coppice::testing
