// Prompts with media, at random, until each hard transition was met often enough: chunks of each size from 1 to 65 rows
// inside of a picture, and requests that wait for the end of one. The oracle knows what all of that gives. The counts
// are of all kinds of groups and both depths together.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <string>

#include "engine/harness.h"
#include "support/long_form.h"
#include "support/sanitized.h"

namespace coppice::testing {
namespace {

using test::FakeMedium;
using test::words_of;

constexpr std::int64_t kInstances = 8;  // of the tests below

/// What each instance must meet, so that all together meet a thousand in the long form.
std::int64_t enough(std::int64_t instances) {
  const std::int64_t all = test::long_form() ? 1'000 : test::kSanitized ? instances : 100;
  return (all + instances - 1) / instances;
}

class MediaRandom : public PerDepth {
 protected:
  Prompt text(std::size_t n) { return random_prompt(dice_, n); }
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(dice_); }

  std::mt19937_64 dice_{test_seed(20261128)};
};

// Of pictures that may be cut any rows are computed beside any: a chunk begins and ends at every place of a block.
TEST_P(MediaRandom, ChunksOfEachSizeInsideOfPictures) {
  constexpr int kLargest = 65, kRows = 300;
  for (int chunk = 1; chunk <= kLargest && !HasFailure(); ++chunk) {
    Harness h(
        {.groups = groups(),
         .num_blocks = scaled(groups(), 300),
         .max_batch = 2,
         .step_tokens = chunk,
         .max_extend = chunk * (groups() == Groups::kFullAndRecurrent ? 1 : depth() + 1),  // states: a step at a time
         .state_stride = kNoStride,
         .depth = depth()});
    std::int64_t inside = 0;
    std::size_t seen = 0;
    for (std::int64_t n = 0; inside < enough(kInstances) && n < 2 * enough(kInstances) && !HasFailure(); ++n) {
      const int head = pick(0, 20);
      Prompt prompt = text(static_cast<std::size_t>(head)) + words_of({.which = pick(2, 3), .rows = kRows});
      if (chunk > 1) prompt = prompt + words_of({.which = pick(0, 1), .rows = pick(1, chunk - 1), .whole = true});
      const auto id =
          h.submit({.prompt = prompt + text(static_cast<std::size_t>(pick(1, 9))), .max_tokens = pick(1, 3)});
      h.finish();
      EXPECT_FALSE(h.result(id).refusal) << h.result(id).message;
      for (; seen < h.executor().steps().size(); ++seen)
        for (const auto& part : h.executor().steps()[seen].sequences)
          inside += part.n_rows == chunk && part.first_position >= head && part.first_position + chunk <= head + kRows;
    }
    EXPECT_GE(inside, enough(kInstances)) << "chunks of " << chunk << " rows";
  }
}

// Several ask about a picture at once. Who doesn't lead begins where it ends, inside of a block.
TEST_P(MediaRandom, EndsOfPicturesAreWaitedFor) {
  if (groups() == Groups::kFullAndRecurrent) return;  // a state stands at whole blocks where it may be cut
  Transitions met;
  auto& followed = met["followers of a picture's end"];
  const std::int64_t wanted = enough(kInstances - 2);
  Harness h({.groups = groups(),
             .num_blocks = scaled(groups(), 600),
             .max_batch = 8,
             .step_tokens = 128,
             .max_extend = 128 * (depth() + 1),
             .depth = depth()});
  for (int burst = 0; followed < wanted && burst < 20 * wanted && !HasFailure(); ++burst) {
    const FakeMedium picture{.which = pick(0, 1), .rows = pick(1, 60), .whole = true};
    const Prompt stem = text(static_cast<std::size_t>(pick(8, 30))) + words_of(picture);
    std::vector<engine::RequestId> ids;
    for (int i = pick(2, 6); i > 0; --i)
      ids.push_back(h.submit({.prompt = stem + text(static_cast<std::size_t>(pick(2, 12))), .max_tokens = pick(1, 8)}));
    h.finish();
    const auto end = static_cast<std::int32_t>(stem.size());
    if (end % 8 == 0) continue;
    for (const auto id : ids) followed += h.result(id).usage.cached_tokens == end;
  }
  expect_met(met, wanted);
}

COPPICE_FOR_ALL_DEPTHS(MediaRandom);

}  // namespace
}  // namespace coppice::testing
