#include "engine/step_budget.h"

#include <gtest/gtest.h>

namespace coppice::engine {
namespace {

EngineConfig config() {
  return {.step_tokens = 512, .alone_tokens = 2048, .alone_seconds = 0.25};
}

/// A step of prompts alone, with all the rows that it may have.
void prefill(StepBudget& budget, double tokens_per_second) {
  budget.stepped(budget.rows(0), budget.rows(0), budget.rows(0) / tokens_per_second);
}

TEST(StepBudget, GrowsByTwiceAtMostAndShrinksAtOnce) {
  StepBudget budget(config(), 32, 16);
  EXPECT_EQ(budget.rows(0), 512);
  prefill(budget, 10'000);
  EXPECT_EQ(budget.rows(0), 1024);
  prefill(budget, 10'000);
  EXPECT_EQ(budget.rows(0), 2048);
  prefill(budget, 10'000);
  EXPECT_EQ(budget.rows(0), 2048) << "no more than that";
  prefill(budget, 5'000);
  EXPECT_EQ(budget.rows(0), 1024) << "0.25 s are 1,250 rows";
  prefill(budget, 100);
  EXPECT_EQ(budget.rows(0), 512) << "no fewer than beside decodes";
  EXPECT_EQ(budget.rows(1), 512);
}

TEST(StepBudget, LearnsOnlyFromFullStepsOfPrompts) {
  StepBudget budget(config(), 32, 16);
  prefill(budget, 10'000);
  budget.stepped(100, 100, 1);  // the last rows of a prompt
  EXPECT_EQ(budget.rows(0), 1024);
  budget.stepped(512, 520, 1);  // beside decodes
  EXPECT_EQ(budget.rows(0), 1024);
}

TEST(StepBudget, IsTheSmallOneWithoutALargeOne) {
  StepBudget budget({.step_tokens = 512}, 32, 16);
  for (int i = 0; i < 3; ++i) prefill(budget, 1e9);
  EXPECT_EQ(budget.rows(0), 512);
}

TEST(StepBudget, HasRoomBehindAllDecodes) {
  EXPECT_EQ(StepBudget({.step_tokens = 8}, 32, 16).rows(1), 33);
}

TEST(StepBudget, GivesPromptsHalfBesideDecodes) {
  const StepBudget budget(config(), 32, 16);
  EXPECT_EQ(budget.prompt_rows(0, 0, {}), 512);
  EXPECT_EQ(budget.prompt_rows(1, 0, {}), 256);
  EXPECT_EQ(StepBudget({.step_tokens = 40}, 32, 16).prompt_rows(32, 0, {}), 8) << "what is left";
  EXPECT_EQ(StepBudget({.step_tokens = 20}, 2, 16).prompt_rows(2, 0, {}), 16) << "a block, if that is more";
}

TEST(StepBudget, IsBoundByTimeWhileSeveralKeysCome) {
  StepBudget budget(config(), 32, 16);
  const Clock::time_point now{std::chrono::hours(1)};
  budget.came("a", now);
  budget.came("a", now);
  EXPECT_EQ(budget.prompt_rows(0, 1000, now), 512);
  budget.came("b", now);
  EXPECT_EQ(budget.prompt_rows(0, 1000, now), 80);
  EXPECT_EQ(budget.prompt_rows(1, 1000, now), 40);
  EXPECT_EQ(budget.prompt_rows(0, 10, now), StepBudget::kSharedRows);
  EXPECT_EQ(budget.prompt_rows(0, 0, now), StepBudget::kSharedRows);
  EXPECT_EQ(budget.prompt_rows(0, 1e12, now), 512);
  EXPECT_EQ(StepBudget({.step_tokens = 8}, 2, 16).prompt_rows(0, 10, now), 8);
  EXPECT_EQ(budget.prompt_rows(0, 1000, now + StepBudget::kLately), 512);
}

}  // namespace
}  // namespace coppice::engine
