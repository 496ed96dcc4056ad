// The net itself: an executor that makes a mistake must be seen, or none of the other tests proves anything.
#include <gtest/gtest.h>

#include "engine/harness.h"

namespace coppice::testing {
namespace {

using Mistake = FakeExecutor::Mistake;

struct Seen {
  bool by_faults = false;
  bool by_tokens = false;
};

// A load that forks in every way: samples of one prompt, a prefix that ends inside a block, a tight pool.
Seen run_with(Mistake mistake, Groups groups) {
  std::mt19937_64 random(1);
  const auto n_groups = static_cast<std::int32_t>(make_groups(groups).size());
  Harness h({.groups = groups, .num_blocks = 30 * n_groups, .max_batch = 8, .max_extend = 16});
  h.check_faults = false;
  h.executor().make(mistake);
  const auto shared = random_prompt(random, 45);
  for (std::uint64_t i = 0; i < 8; ++i) {
    h.submit({.prompt = shared + random_prompt(random, 5), .max_tokens = 30, .n = i % 2 == 0 ? 3 : 1, .seed = i});
    h.step();
  }
  while (h.step()) {
  }
  Seen seen{.by_faults = !h.executor().faults().empty()};
  for (const auto& [id, result] : h.results()) seen.by_tokens |= !error_in(result, h.groups()).empty();
  return seen;
}

TEST(Mistakes, AreSeenInTheSlotsAndInTheTokens) {
  for (const auto groups :
       {Groups::kFull, Groups::kFullAndSliding, Groups::kFullAndFiveSliding, Groups::kFullAndRecurrent}) {
    const auto none = run_with(Mistake::kNone, groups);
    EXPECT_FALSE(none.by_faults || none.by_tokens);
    for (const auto mistake :
         {Mistake::kSkipCopies, Mistake::kCopyOneSlotLess, Mistake::kWrongSlot, Mistake::kSkipState}) {
      if (mistake == Mistake::kSkipState && groups != Groups::kFullAndRecurrent) continue;
      SCOPED_TRACE(static_cast<int>(mistake));
      const auto seen = run_with(mistake, groups);
      EXPECT_TRUE(seen.by_faults);
      EXPECT_TRUE(seen.by_tokens);
    }
  }
}

// A block with the right tokens at the right positions after a wrong past: only the second layer's keys, which
// depend on all that was seen, can tell. So the oracle must see one changed token through a whole prompt.
TEST(Mistakes, AWrongPastIsSeenInTheTokens) {
  std::mt19937_64 random(2);
  auto prompt = random_prompt(random, 100);
  Harness h({.groups = Groups::kFullAndSliding});
  const auto id = h.submit({.prompt = prompt, .max_tokens = 3});
  h.finish();
  Result altered = h.result(id);
  altered.submission.prompt[0] ^= 1;
  EXPECT_NE(error_in(altered, h.groups()), "");
}

}  // namespace
}  // namespace coppice::testing
