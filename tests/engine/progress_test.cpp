// How far a prompt is: told after each step to who asks.
#include <gtest/gtest.h>

#include <chrono>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using Progress = PerGroups;

TEST_P(Progress, TellsWhatIsCachedAndThenEachStep) {
  std::mt19937_64 random(1);
  Harness h({.groups = GetParam(), .step_tokens = 64});
  const auto prompt = random_prompt(random, 150);
  const auto id = h.submit({.prompt = prompt, .max_tokens = 5, .n = 2, .progress = true});
  while (h.step()) h.now += std::chrono::seconds(1);
  h.finish();
  const Result& result = h.result(id);
  std::vector<std::int32_t> computed;
  std::vector<double> seconds;
  for (const engine::Progress& progress : result.progress) {
    computed.push_back(progress.computed);
    EXPECT_EQ(progress.usage.prompt_tokens, 150);
    EXPECT_EQ(progress.usage.cached_tokens, 0);
    EXPECT_EQ(progress.usage.completion_tokens, 0);
    seconds.push_back(progress.usage.prompt_seconds);
  }
  EXPECT_EQ(computed, (std::vector<std::int32_t>{0, 64, 128, 150}));
  EXPECT_EQ(seconds, (std::vector<double>{0, 0, 1, 2})) << "by the engine's clock: the first step takes no time";
  ASSERT_EQ(result.so_far.size(), 10u) << "with each token";
  EXPECT_EQ(result.so_far.front().completion_tokens, 1);
  EXPECT_EQ(result.so_far.back().completion_tokens, 10);
  EXPECT_EQ(result.usage.prompt_seconds, 2);
  EXPECT_EQ(result.usage.decode_seconds, 4);
  EXPECT_EQ(result.so_far.back().prompt_seconds, result.usage.prompt_seconds);

  const auto again = h.submit({.prompt = prompt, .max_tokens = 1, .progress = true});
  h.finish();
  const auto& cached = h.result(again).progress;
  ASSERT_EQ(cached.size(), 2u);
  EXPECT_EQ(cached[0].computed, 149) << "all but the last token";
  EXPECT_EQ(cached[0].usage.cached_tokens, 149);
  EXPECT_EQ(cached[0].usage.prompt_seconds, 0);
  EXPECT_EQ(cached[1].computed, 150);
}

TEST_P(Progress, NobodyElseHears) {
  std::mt19937_64 random(2);
  Harness h({.groups = GetParam()});
  const auto id = h.submit({.prompt = random_prompt(random, 100), .max_tokens = 3});
  h.finish();
  EXPECT_TRUE(h.result(id).progress.empty());
  EXPECT_TRUE(h.result(id).so_far.empty());
}

TEST_P(Progress, NeverGoesBackAfterAPreemption) {
  std::mt19937_64 random(3);
  const std::int32_t num_blocks = GetParam() == Groups::kFull ? 60 : GetParam() == Groups::kFullAndSliding ? 120 : 330;
  Harness h({.groups = GetParam(), .num_blocks = num_blocks, .step_tokens = 16});
  std::vector<engine::RequestId> ids;
  for (int i = 0; i < 6; ++i)
    ids.push_back(h.submit({.prompt = random_prompt(random, 90), .max_tokens = 60, .progress = true}));
  h.finish();
  for (const auto id : ids) {
    std::int32_t before = -1;
    for (const engine::Progress& progress : h.result(id).progress) {
      EXPECT_GT(progress.computed, before);
      before = progress.computed;
    }
    EXPECT_EQ(before, 90);
  }
}

COPPICE_FOR_ALL_GROUPS(Progress);

}  // namespace
}  // namespace coppice::testing
