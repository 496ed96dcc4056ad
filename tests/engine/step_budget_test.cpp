#include "engine/step_budget.h"

#include <gtest/gtest.h>

namespace coppice::engine {
namespace {

EngineConfig config() {
  return {.step_tokens = 512, .alone_tokens = 2048, .alone_seconds = 0.25};
}

/// A step of prompts alone, with all the rows that it may have.
void prefill(StepBudget& budget, double tokens_per_second) {
  budget.stepped(budget.alone(), budget.alone(), budget.alone() / tokens_per_second);
}

TEST(StepBudget, GrowsByTwiceAtMostAndShrinksAtOnce) {
  StepBudget budget(config(), 32);
  EXPECT_EQ(budget.alone(), 512);
  prefill(budget, 10'000);
  EXPECT_EQ(budget.alone(), 1024);
  prefill(budget, 10'000);
  EXPECT_EQ(budget.alone(), 2048);
  prefill(budget, 10'000);
  EXPECT_EQ(budget.alone(), 2048) << "no more than that";
  prefill(budget, 5'000);
  EXPECT_EQ(budget.alone(), 1024) << "0.25 s are 1,250 rows";
  prefill(budget, 100);
  EXPECT_EQ(budget.alone(), 512) << "no fewer than beside decodes";
  EXPECT_EQ(budget.beside_decodes(), 512);
}

TEST(StepBudget, LearnsOnlyFromFullStepsOfPrompts) {
  StepBudget budget(config(), 32);
  prefill(budget, 10'000);
  budget.stepped(100, 100, 1);  // the last rows of a prompt
  EXPECT_EQ(budget.alone(), 1024);
  budget.stepped(512, 520, 1);  // beside decodes
  EXPECT_EQ(budget.alone(), 1024);
}

TEST(StepBudget, IsTheSmallOneWithoutALargeOne) {
  StepBudget budget({.step_tokens = 512}, 32);
  for (int i = 0; i < 3; ++i) prefill(budget, 1e9);
  EXPECT_EQ(budget.alone(), 512);
}

TEST(StepBudget, HasRoomBehindAllDecodes) {
  EXPECT_EQ(StepBudget({.step_tokens = 8}, 32).beside_decodes(), 33);
}

}  // namespace
}  // namespace coppice::engine
