// The engine over an executor that works one step ahead: how many rows it takes, what stays in the tree of those that
// are thrown away, and what becomes of steps that run when something ends. tests/engine/soak_test.cpp has all of it at
// random.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/harness.h"
#include "engine/oracle.h"
#include "engine/steps_in_hand.h"

namespace coppice::testing {
namespace {

Prompt counting(int from, int n) {
  Prompt prompt(static_cast<std::size_t>(n));
  std::iota(prompt.begin(), prompt.end(), from);
  return prompt;
}

int rows(Harness& h) {
  int sum = 0;
  for (const auto& step : h.executor().steps()) sum += step.n_rows;
  return sum;
}

std::size_t drawn(Harness& h) {
  std::size_t sum = 0;
  for (const auto& step : h.executor().steps()) sum += step.n_drawn;
  return sum;
}

class Ahead : public PerGroups {
 protected:
  static HarnessConfig config() { return {.groups = GetParam(), .max_extend = 64, .depth = 1}; }
  /// What a request of these tokens finds in the tree.
  static std::int32_t cached(Harness& h, const Prompt& prompt) {
    const auto id = h.submit({.prompt = prompt, .max_tokens = 2, .seed = 99});
    h.finish();
    return h.result(id).usage.cached_tokens;
  }
};

TEST_P(Ahead, AnEndByMaxTokensTakesNoRow) {
  Harness h(config());
  h.submit({.prompt = counting(0, 37), .max_tokens = 21});
  h.finish();
  EXPECT_EQ(rows(h), 37 + 20) << "nothing is computed behind the last token";
  EXPECT_EQ(drawn(h), 20u) << "each row was planned before its token was known";
}

TEST_P(Ahead, AnEndByTheContextTakesNoRow) {
  HarnessConfig c = config();
  c.context_length = 50;
  Harness h(c);
  const auto id = h.submit({.prompt = counting(0, 37)});
  h.finish();
  EXPECT_EQ(h.result(id).samples[0].tokens.size(), 13u);
  EXPECT_EQ(rows(h), 37 + 12);
}

TEST_P(Ahead, AnEndByAStopTakesOneRowThatNobodyFinds) {
  Harness h(config());
  const Prompt prompt = counting(0, 37);
  const auto id = h.submit({.prompt = prompt, .stop_after = 12});
  h.finish();
  EXPECT_EQ(rows(h), 37 + 11 + 1);
  const Prompt answer = h.result(id).samples[0].tokens;
  EXPECT_EQ(cached(h, prompt + answer + Prompt(9, 5)), 37 + 11) << "the row behind the stop was thrown away";
}

// At every step of an answer: what was computed stays, and only that.
TEST_P(Ahead, ACancelledAnswerLeavesWhatWasComputed) {
  for (int after = 1; after < 30; ++after) {
    HarnessConfig c = config();
    c.seed = static_cast<std::uint64_t>(after);
    Harness h(c);
    const Prompt prompt = counting(0, 20);
    const auto id = h.submit({.prompt = prompt, .max_tokens = 60});
    for (int i = 0; i < after; ++i) h.step();
    h.cancel(id);
    h.finish();
    const auto n = static_cast<std::int32_t>(h.result(id).samples[0].tokens.size());
    const Prompt all = prompt + expected_tokens(h.groups(), prompt, 1, 60);
    const std::int32_t found = cached(h, all);
    EXPECT_EQ(found, n > 0 ? 20 + n - 1 : found) << "after " << after << " steps";
    EXPECT_LE(found, 20 + n);
  }
}

TEST_P(Ahead, AFailedStepFailsTheOneBehindItAndNothingElse) {
  for (int failing = 0; failing < 25; ++failing) {
    SCOPED_TRACE(failing);
    HarnessConfig c = config();
    c.seed = static_cast<std::uint64_t>(failing);
    Harness h(c);
    h.executor().fail_at(failing);
    const Prompt prompt = counting(0, 20);
    const auto id = h.submit({.prompt = prompt, .max_tokens = 20});
    h.finish();
    const auto& result = h.result(id);
    if (failing > 19) {  // there is no such step
      EXPECT_EQ(result.samples[0].finish, sampling::Finish::kLength);
      continue;
    }
    EXPECT_TRUE(result.refusal == engine::Refusal::kFailed || result.samples[0].finish == sampling::Finish::kError);
    EXPECT_EQ(result.samples[0].tokens.size(), static_cast<std::size_t>(failing));
    const auto again = h.submit({.prompt = prompt, .max_tokens = 20});
    h.finish();
    EXPECT_EQ(h.result(again).samples[0].finish, sampling::Finish::kLength);
  }
}

// Whoever is preempted while the device draws its token draws it again.
TEST_P(Ahead, APreemptedOneDrawsTheSameToken) {
  const auto n_groups = static_cast<std::int32_t>(make_groups(GetParam()).size());
  std::int64_t preemptions = 0;
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    HarnessConfig c = config();
    c.num_blocks = 1 + (10 + static_cast<std::int32_t>(seed % 6)) * n_groups;
    c.growth_room = false;
    c.seed = seed;
    Harness h(c);
    for (int i = 0; i < 4; ++i)
      h.submit({.prompt = counting(100 * i, 20), .max_tokens = 30, .seed = seed + static_cast<std::uint64_t>(i)});
    h.finish();
    preemptions += h.snapshot().preemptions;
  }
  EXPECT_GE(preemptions, 3);
}

// In a step of its own behind that the leader's last tokens would hold them up.
TEST_P(Ahead, FollowersJoinTheStepBehindTheirBlocks) {
  Harness h(config());
  const Prompt shared = counting(0, 64);
  for (int i = 0; i < 4; ++i) h.submit({.prompt = shared + counting(100 * (i + 1), 5), .max_tokens = 1});
  h.finish();
  std::vector<int> rows;
  for (const auto& step : h.executor().steps()) rows.push_back(step.n_rows);
  EXPECT_EQ(rows, (std::vector<int>{32, 32, 4 * 5}));
}

// What a step looks at in the queue has a limit, which must not part them.
TEST_P(Ahead, SixtyFourWithALongPastComeInOneStep) {
  constexpr int kStep = 2048, kSteps = 4;
  HarnessConfig c = config();
  c.block_size = 32;
  c.max_batch = 64;
  c.step_tokens = kStep;
  c.max_extend = 2 * kStep;
  Harness h(c);
  const Prompt shared = counting(0, kSteps * kStep);
  for (int i = 0; i < 64; ++i) h.submit({.prompt = shared + counting(100 * (i + 1), 20), .max_tokens = 1});
  h.finish();
  ASSERT_EQ(h.executor().steps().size(), static_cast<std::size_t>(kSteps) + 1);
  EXPECT_EQ(h.executor().steps().back().n_rows, 64 * 20);
}

TEST_P(Ahead, SamplesAndScoresOfOneStepAreRight) {
  Harness h(config());
  const auto samples = h.submit({.prompt = counting(0, 40), .max_tokens = 15, .n = 3});
  h.submit({.prompt = counting(50, 90), .max_tokens = 9, .scored_from = 1, .n_top = 2});
  h.submit({.prompt = counting(150, 70), .only_prompt = true, .pooling = engine::Pooling::kMean});
  h.submit({.prompt = counting(300, 30), .max_tokens = 5, .throw_at = 3});
  h.finish();
  EXPECT_EQ(h.result(samples).samples[2].tokens.size(), 15u);
}

TEST_P(Ahead, StoppingWaitsForTheStepThatRuns) {
  Harness h(config());
  const auto id = h.submit({.prompt = counting(0, 20), .max_tokens = 100});
  for (int i = 0; i < 10; ++i) h.step();
  h.engine().stop();
  h.step();
  EXPECT_TRUE(h.engine().ended());
  EXPECT_EQ(h.result(id).samples[0].finish, sampling::Finish::kCancelled);
  EXPECT_TRUE(h.executor().idle());
}

COPPICE_FOR_ALL_GROUPS(Ahead);

// Who makes a cache for chunks of a length gets chunks of that length.
class Chunks : public PerDepth {};

TEST_P(Chunks, AreAsLongAsTheCacheWasMadeFor) {
  constexpr int kChunk = 16;
  const int max_extend = kChunk * engine::steps_in_hand(groups() == Groups::kFullAndRecurrent, depth());
  Harness h({.groups = groups(), .max_extend = max_extend, .state_stride = 1 << 20, .depth = depth()});
  h.submit({.prompt = counting(0, 150), .max_tokens = 2});
  h.finish();
  int longest = 0;
  for (const auto& step : h.executor().steps()) longest = std::max(longest, step.n_rows);
  EXPECT_EQ(longest, kChunk);
}

COPPICE_FOR_ALL_DEPTHS(Chunks);

}  // namespace
}  // namespace coppice::testing
