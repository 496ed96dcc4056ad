// Memory runs out for one allocation of the step that preempts a sequence: whoever is hit, the engine goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <new>

#include "engine/harness.h"
#include "support/failing_new.h"

namespace coppice::testing {
namespace {

std::int64_t ended(const Harness& h) {
  return std::ranges::count_if(h.results(), [](const auto& each) { return each.second.done; });
}

/// Two that decode, in a pool that is too small for both. `first`: prompt tokens of the older one, so that now it and
/// now the younger one is the first to want a block.
struct World {
  Harness h{{.num_blocks = 12, .max_batch = 8, .growth_room = false}};
  explicit World(std::size_t first) {
    std::mt19937_64 random(1);
    h.submit({.prompt = random_prompt(random, first), .max_tokens = 40});
    h.submit({.prompt = random_prompt(random, 20), .max_tokens = 40, .seed = 2});
  }
};

/// False: no allocation of the step was number n.
bool fails_at(int n, std::size_t first, int steps_before) {
  World world(first);
  while (world.h.steps() < steps_before) world.h.step();
  const auto before = world.h.snapshot();
  fail_allocation(n);
  try {
    const Counting counting;
    world.h.step();
  } catch (const std::bad_alloc&) {  // it was the harness's, or an ending's
    fail_allocation(0);
    return true;
  }
  const bool failed = allocation_failed();
  fail_allocation(0);
  const auto after = world.h.snapshot();
  EXPECT_TRUE(after.steps > before.steps || after.preemptions > before.preemptions || ended(world.h) > 0)
      << "nothing happened";
  world.h.run();
  EXPECT_EQ(ended(world.h), 2);
  EXPECT_EQ(world.h.snapshot().cache.in_use, 0);
  return failed;
}

TEST(Shortage, AStepThatCannotPreemptEndsSomebody) {
  for (std::size_t first = 16; first < 24; ++first) {
    World dry(first);
    while (dry.h.snapshot().preemptions == 0) ASSERT_TRUE(dry.h.step());
    int n = 1;
    for (; fails_at(n, first, dry.h.steps() - 1); ++n) {
      if (HasFailure()) FAIL() << "allocation " << n << ", " << first << " tokens first";
    }
    EXPECT_GT(n, 5);
  }
}

}  // namespace
}  // namespace coppice::testing
