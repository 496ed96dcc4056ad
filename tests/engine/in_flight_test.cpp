// In-flight sharing: requests that arrive with the same new prefix prefill it once.
//
// The exact statement that is checked. Let request i have L(i) prompt tokens, of which c(i) were cached when it
// was admitted; it computes the positions [c(i), L(i)). A node of the trie of all prompts is a prefix, and
// position p of request i stands for its prefix of p + 1 tokens. Then
//   computed = sum of L(i) - c(i) = nodes of the trie + repeats,
// and of those who compute the same node, all but at most one do so at an excepted position:
//   p = L(i) - 1          the last token, whose logits are needed, or
//   p < (c(i) / bs + 1) * bs   in the one block that was still being filled when i was admitted.
// In models with recurrent layers c(i) in the last line is what was cached, even where no state let i start there.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using InFlight = PerGroups;
using InFlightAndStates = PerGroups;  // those that hold with recurrent layers, too

struct Computed {
  Prompt prompt;
  std::int32_t cached = 0;
  std::int32_t lost = 0;  ///< cached, but of no use without a state
};

Computed computed_by(const Result& result) {
  const bool stateless = result.report && result.report->ended == engine::MatchEnded::kNoState;
  return {.prompt = result.submission.prompt,
          .cached = result.usage.cached_tokens,
          .lost = stateless ? result.report->lost_tokens : 0};
}

void expect_computed_once(const std::vector<Computed>& all, std::int64_t computed_tokens, int block_size) {
  struct Node {
    int plain = 0, excepted = 0;
  };
  std::map<Prompt, Node> computed;
  std::set<Prompt> trie;
  for (const auto& [prompt, cached, lost] : all) {
    const auto length = static_cast<std::int32_t>(prompt.size());
    for (std::int32_t p = 0; p < length; ++p) {
      const Prompt prefix(prompt.begin(), prompt.begin() + p + 1);
      trie.insert(prefix);
      if (p < cached) continue;
      const bool excepted = p == length - 1 || p < ((cached + lost) / block_size + 1) * block_size;
      ++(excepted ? computed[prefix].excepted : computed[prefix].plain);
    }
  }
  std::int64_t repeats = 0;
  for (const auto& [prefix, node] : computed) {
    EXPECT_LE(node.plain, 1) << "a prefix of " << prefix.size() << " tokens was computed twice without need";
    repeats += node.plain + node.excepted - 1;
  }
  EXPECT_EQ(computed.size(), trie.size()) << "somebody has to compute every node";
  EXPECT_EQ(computed_tokens, static_cast<std::int64_t>(trie.size()) + repeats);
}

std::vector<Computed> computed_by(const Harness& h) {
  std::vector<Computed> all;
  for (const auto& [id, result] : h.results()) {
    all.push_back(computed_by(result));
  }
  return all;
}

// Prompts that share at every depth: each one begins with a random piece of an earlier one.
std::vector<Prompt> related_prompts(std::mt19937_64& random, std::size_t n) {
  const auto pick = [&](std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random);
  };
  std::vector<Prompt> prompts;
  while (prompts.size() < n) {
    Prompt prompt;
    if (!prompts.empty() && pick(0, 9) > 0) {
      const Prompt& other = prompts[pick(0, prompts.size() - 1)];
      prompt.assign(other.begin(),
                    other.begin() + static_cast<std::ptrdiff_t>(pick(0, std::min<std::size_t>(other.size(), 160))));
    }
    if (prompt.empty() || pick(0, 5) > 0) prompt = prompt + random_prompt(random, pick(1, 50), 3);
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

TEST_P(InFlight, RandomSetsAreComputedOnce) {
  const auto seed = test_seed(20240601);
  for (std::uint64_t round = 0; round < 150; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::mt19937_64 random(seed + round);
    const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const int max_batch = pick(1, 24);
    Harness h({.groups = GetParam(),
               .block_size = pick(0, 1) == 0 ? 8 : 16,
               .max_batch = max_batch,
               .step_tokens = pick(8, 200),
               .max_extend = pick(5, 100)});
    const bool together = pick(0, 2) > 0;
    std::int64_t decode_rows = 0;
    for (auto& prompt : related_prompts(random, static_cast<std::size_t>(pick(2, 24)))) {
      const int max_tokens = pick(1, 12);
      decode_rows += max_tokens - 1;
      h.submit({.prompt = std::move(prompt), .max_tokens = max_tokens, .seed = random()});
      if (!together && pick(0, 1) == 0) h.step();
    }
    h.finish();
    expect_computed_once(computed_by(h), h.snapshot().computed_tokens, h.cache().config().block_size);
    std::int64_t rows = 0;
    for (const auto& step : h.executor().steps()) rows += step.n_rows;
    EXPECT_EQ(rows, h.snapshot().computed_tokens + decode_rows) << "the figure is what the executor ran";
    EXPECT_EQ(h.snapshot().prompt_tokens, h.snapshot().cached_tokens + h.snapshot().computed_tokens);
    if (HasFailure()) return;
  }
}

TEST_P(InFlightAndStates, EqualPromptsAreComputedOnce) {
  std::mt19937_64 random(1);
  for (const std::size_t length : {7u, 8u, 16u, 31u, 64u, 65u, 129u}) {
    SCOPED_TRACE(length);
    Harness h({.groups = GetParam(), .step_tokens = 40});
    const auto prompt = random_prompt(random, length);
    for (std::uint64_t i = 0; i < 8; ++i) h.submit({.prompt = prompt, .max_tokens = 6, .seed = i});
    h.finish();
    expect_computed_once(computed_by(h), h.snapshot().computed_tokens, 8);
  }
}

TEST_P(InFlightAndStates, NestedPrefixes) {
  std::mt19937_64 random(2);
  const auto longest = random_prompt(random, 200);
  for (const bool longest_first : {false, true}) {
    Harness h({.groups = GetParam(), .step_tokens = 36});
    for (int i = 1; i <= 8; ++i) {
      const int length = 25 * (longest_first ? 9 - i : i);
      h.submit({.prompt = Prompt(longest.begin(), longest.begin() + length), .max_tokens = 3});
    }
    h.step();
    EXPECT_EQ(h.snapshot().running_requests, 1);
    h.finish();
    expect_computed_once(computed_by(h), h.snapshot().computed_tokens, 8);
    EXPECT_LE(h.snapshot().computed_tokens, 200 + 7 * 8);
  }
}

TEST_P(InFlight, WhatSharesNothingStartsInTheNextStep) {
  std::mt19937_64 random(3);
  Harness h({.groups = GetParam()});
  const auto shared = random_prompt(random, 400);
  for (int i = 0; i < 6; ++i) h.submit({.prompt = shared + random_prompt(random, 30), .max_tokens = 3});
  h.step();
  h.step();
  ASSERT_EQ(h.snapshot().following_requests, 5);
  ASSERT_EQ(h.last().sequences.size(), 1u);
  const auto unrelated = h.submit({.prompt = random_prompt(random, 14), .max_tokens = 3});
  h.step();
  EXPECT_EQ(h.last().sequences.size(), 2u);
  EXPECT_EQ(h.snapshot().following_requests, 5) << "those who wait go on waiting";
  EXPECT_EQ(h.result(unrelated).first_step, 3);
  h.finish();
}

TEST_P(InFlight, FollowersStartAsSoonAsWhatTheyShareIsThere) {
  std::mt19937_64 random(8);
  Harness h({.groups = GetParam()});
  const auto shared = random_prompt(random, 100);
  const auto leader = h.submit({.prompt = shared + random_prompt(random, 900), .max_tokens = 3});
  const auto follower = h.submit({.prompt = shared + random_prompt(random, 10), .max_tokens = 3});
  h.finish();
  EXPECT_EQ(h.result(follower).usage.cached_tokens, 100) << "also a part of the block that the leader filled";
  EXPECT_EQ(h.result(follower).first_step, 3) << "two steps of the leader, one of its own";
  EXPECT_GT(h.result(leader).first_step, 15);
}

// Equal tokens at equal positions after another past are no shared prefix.
TEST_P(InFlightAndStates, NobodyFollowsAnotherPast) {
  std::mt19937_64 random(9);
  Harness h({.groups = GetParam()});
  const auto mine = random_prompt(random, 40);
  h.submit({.prompt = mine, .max_tokens = 2});
  h.finish();
  const auto tail = random_prompt(random, 300);
  h.submit({.prompt = random_prompt(random, 40) + tail, .max_tokens = 2});
  h.step();
  h.submit({.prompt = mine + tail, .max_tokens = 2});
  h.step();
  EXPECT_EQ(h.snapshot().following_requests, 0);
  EXPECT_EQ(h.snapshot().running_requests, 2);
  h.finish();
}

TEST_P(InFlightAndStates, FollowersHoldNothing) {
  std::mt19937_64 random(4);
  Harness h({.groups = GetParam(), .step_tokens = 33, .max_extend = 32});
  const auto shared = random_prompt(random, 300);
  h.submit({.prompt = shared, .max_tokens = 3});
  h.step();
  const auto alone = h.snapshot().cache;
  Harness other({.groups = GetParam(), .step_tokens = 33, .max_extend = 32});
  for (std::uint64_t i = 0; i < 8; ++i) other.submit({.prompt = shared, .max_tokens = 3, .seed = i});
  other.step();
  EXPECT_EQ(other.snapshot().following_requests, 7);
  EXPECT_EQ(other.snapshot().cache.reserved, alone.reserved);
  EXPECT_EQ(other.snapshot().cache.in_use, alone.in_use);
  EXPECT_EQ(other.snapshot().cache.sequences, 1);
  other.finish();
}

// One leader, three followers; `lose` takes the leader away after `k` steps of its prefill. Whatever it had
// computed (`kept` of it) is used, and the followers compute the rest once.
template <typename Lose>
void lose_leader(Groups groups, int n_steps, Lose lose) {
  for (int k = 0; k < n_steps; ++k) {
    SCOPED_TRACE("lost at step " + std::to_string(k));
    std::mt19937_64 random(5);
    const auto shared = random_prompt(random, 100);
    Harness h({.groups = groups, .block_size = 8, .max_batch = 8, .step_tokens = 13, .state_stride = kNoStride});
    const auto leader = h.submit({.prompt = shared + random_prompt(random, 40), .max_tokens = 3});
    std::vector<engine::RequestId> followers;
    for (std::uint64_t i = 0; i < 3; ++i) {
      followers.push_back(
          h.submit({.prompt = shared + random_prompt(random, 20), .max_tokens = 5, .seed = i, .cache_report = true}));
    }
    for (int i = 0; i < k; ++i) h.step();
    const auto following = h.snapshot().following_requests;
    const auto computed = static_cast<std::int32_t>(h.snapshot().computed_tokens);
    const bool alone = h.snapshot().running_requests <= 1;
    const std::int32_t kept = lose(h, leader, computed);
    h.finish();
    for (const auto id : followers) EXPECT_FALSE(h.result(id).refusal.has_value());
    if (!alone) continue;  // the followers run by themselves already
    EXPECT_EQ(following, k == 0 || computed >= 96 ? 0 : 3) << "woken as soon as all shared blocks are there";
    const auto first = h.result(followers[0]).usage.cached_tokens;
    EXPECT_EQ(first, k == 0 ? 0 : std::min(kept, 100)) << "the oldest leads from what was published";
    std::vector<Computed> all;
    for (const auto id : followers) {
      all.push_back(computed_by(h.result(id)));
    }
    // The leader computed its first `computed` tokens, of which the block at `kept` was lost half filled.
    const auto& prompt = h.result(leader).submission.prompt;
    all.push_back({.prompt = Prompt(prompt.begin(), prompt.begin() + computed), .cached = 0});
    expect_computed_once(all, h.snapshot().computed_tokens, 8);
  }
}

TEST_P(InFlightAndStates, LeaderCancelledAtEveryStep) {
  lose_leader(GetParam(), 12, [](Harness& h, engine::RequestId leader, std::int32_t computed) {
    h.cancel(leader);
    return computed;
  });
}

TEST_P(InFlightAndStates, LeaderFailsAtEveryStep) {
  // Up to the step that wakes the followers: later they are in the batch that fails.
  lose_leader(GetParam(), 8, [](Harness& h, engine::RequestId leader, std::int32_t computed) {
    h.executor().fail_at(static_cast<int>(h.executor().steps().size()));
    h.step();
    EXPECT_EQ(h.result(leader).refusal, engine::Refusal::kFailed);
    // A state that was kept is as far as it came where the followers part; else its step lost the only one.
    if (GetParam() == Groups::kFullAndRecurrent) return computed >= 96 ? 96 : 0;
    return computed / 8 * 8;
  });
}

// An older request decodes and takes block after block; in some step, another one for each pool size and
// delay, it takes the leader's. Returns how far the leader had come whenever its followers lost it so.
std::set<std::int64_t> preempt_leader(Groups groups, std::int32_t num_blocks, int delay) {
  std::mt19937_64 random(6);
  Harness h({.groups = groups,
             .num_blocks = num_blocks,
             .max_batch = 8,
             .step_tokens = 9,
             .max_extend = 8,
             .growth_room = false});  // with it a leader is rarely preempted
  h.submit({.prompt = random_prompt(random, 30), .max_tokens = 120, .n = 4});
  for (int i = 0; i < delay; ++i) h.step();
  const auto before = h.snapshot().computed_tokens;
  const auto shared = random_prompt(random, 100);
  for (std::uint64_t i = 0; i < 4; ++i) {
    h.submit({.prompt = shared + random_prompt(random, 20), .max_tokens = 5, .seed = i});
  }
  std::set<std::int64_t> progress;
  std::int64_t preemptions = 0;
  int followers = 0;
  while (h.step() && !::testing::Test::HasFailure()) {
    const auto now = h.snapshot();
    if (now.preemptions > preemptions && followers == 3) progress.insert(now.computed_tokens - before);
    preemptions = now.preemptions;
    followers = now.following_requests;
  }
  h.finish();
  return progress;
}

TEST_P(InFlightAndStates, LeaderPreemptedAtEveryStep) {
  std::set<std::int64_t> progress;
  const auto n_groups = static_cast<std::int32_t>(make_groups(GetParam()).size());
  for (std::int32_t num_blocks = 24 + 6 * n_groups; num_blocks < 24 + 42 * n_groups; num_blocks += n_groups) {
    for (int delay = 8; delay < 16; ++delay) {
      SCOPED_TRACE(std::to_string(num_blocks) + " blocks, delay " + std::to_string(delay));
      progress.merge(preempt_leader(GetParam(), num_blocks, delay));
      if (HasFailure()) return;
    }
  }
  std::cout << "leader preempted at " << progress.size() << " different points of its prefill\n";
  EXPECT_GE(progress.size(), 10u);
}

TEST_P(InFlightAndStates, ABudgetOfExactlyOneRequest) {
  std::mt19937_64 random(7);
  const HarnessConfig probe{.groups = GetParam(), .max_extend = 16};
  const auto needed = Harness(probe).cache().blocks_needed(120, 1);
  HarnessConfig exact = probe;
  exact.num_blocks = static_cast<std::int32_t>(needed) + 1;
  Harness h(exact);
  const auto shared = random_prompt(random, 80);
  for (int i = 0; i < 12; ++i) {
    const auto head = i % 3 == 2 ? random_prompt(random, 80) : shared;
    h.submit({.prompt = head + random_prompt(random, 40), .max_tokens = 4});
  }
  h.finish();
  EXPECT_EQ(h.snapshot().requests_finished, 12);
  for (const auto& [id, result] : h.results()) EXPECT_EQ(result.samples[0].tokens.size(), 4u) << id;
  exact.num_blocks -= 1;
  Harness smaller(exact);
  const auto refused = smaller.submit({.prompt = random_prompt(random, 120), .max_tokens = 4});
  smaller.finish();
  EXPECT_EQ(smaller.result(refused).refusal, engine::Refusal::kTooLong);
}

COPPICE_FOR_ALL_GROUPS(InFlight);
COPPICE_FOR_ALL_GROUPS_AND_STATES(InFlightAndStates);

}  // namespace
}  // namespace coppice::testing
