// Samples whose next token waits for more than logits, as a grammar's mask.
#include <gtest/gtest.h>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using LateSamples = PerDepth;

TEST_P(LateSamples, GiveTheSameTokensAlsoWhenTheyArePreempted) {
  bool preempted = false;
  for (int blocks = 8; blocks < 36; blocks += 2) {
    SCOPED_TRACE(blocks);
    std::mt19937_64 random(1);
    Harness h({.groups = groups(),
               .num_blocks = blocks * static_cast<std::int32_t>(make_groups(groups()).size()) + 1,
               .max_batch = 8,
               .max_extend = 8,
               .growth_room = false,
               .depth = depth()});
    for (std::uint64_t i = 0; i < 6; ++i)
      h.submit({.prompt = random_prompt(random, 20),
                .max_tokens = 40,
                .n = i % 3 == 1 ? 2 : 1,
                .seed = 10 * i,
                .late = static_cast<int>(i % 4)});
    h.finish();
    preempted |= h.snapshot().preemptions > 0;
    if (HasFailure()) return;
  }
  EXPECT_TRUE(preempted);
}

TEST_P(LateSamples, HoldUpNobodyElse) {
  std::mt19937_64 random(2);
  Harness h({.groups = groups(), .depth = depth()});
  const auto late = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 3, .n = 2, .seed = 1, .late = 100});
  const auto other = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 60, .seed = 2});
  while (h.result(other).first_step < 0) h.step();
  for (std::size_t tokens = 1; !h.result(other).done; ++tokens) {
    ASSERT_EQ(h.result(other).samples[0].tokens.size(), tokens) << "one token a step";
    h.step();
  }
  EXPECT_TRUE(h.result(late).samples[0].tokens.empty());
  const auto forwards = h.executor().steps().size();
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(h.step()) << "nothing to do until somebody is ready";
  EXPECT_EQ(h.executor().steps().size(), forwards) << "its last row is computed once";
  h.finish();
}

TEST_P(LateSamples, EndWhenTheyAreCancelled) {
  std::mt19937_64 random(3);
  Harness h({.groups = groups(), .depth = depth()});
  const auto late = h.submit({.prompt = random_prompt(random, 20), .max_tokens = 3, .n = 2, .late = 1 << 30});
  for (int i = 0; i < 5; ++i) h.step();
  h.cancel(late);
  h.run();
  EXPECT_TRUE(h.result(late).done);
}

COPPICE_FOR_ALL_DEPTHS(LateSamples);

}  // namespace
}  // namespace coppice::testing
