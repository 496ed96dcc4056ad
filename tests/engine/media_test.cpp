// Prompts with media (pictures): some can't be cut, because their rows see each other both ways. The oracle knows what
// all of that gives; so a medium that was cut, half matched, or mistaken for another shows as a wrong token.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <random>

#include "engine/harness.h"
#include "support/sanitized.h"

namespace coppice::testing {
namespace {

using test::FakeMedium;
using test::words_of;

constexpr int kRows = 300;

class Media : public PerDepth {
 protected:
  std::mt19937_64 random{11};

  static HarnessConfig config() {
    return {.groups = groups(),
            .num_blocks = scaled(groups(), 600),
            .max_batch = 8,
            .step_tokens = 340,
            .max_extend = 340 * (depth() + 1),
            .depth = depth()};
  }
  /// Pairs have the same symbols, and other digests.
  static Prompt whole(int which = 0, int rows = kRows) {
    return words_of({.which = which, .rows = rows, .whole = true});
  }
  static Prompt causal(int which = 2, int rows = kRows) { return words_of({.which = which, .rows = rows}); }
  Prompt text(std::size_t n) { return random_prompt(random, n); }
};

TEST_P(Media, AreComputedAndContinued) {
  Harness h(config());
  for (const Prompt& picture : {whole(), causal(), whole(4), causal(5, 33)}) {
    h.submit({.prompt = text(21) + picture + text(9), .max_tokens = 12});
    h.submit({.prompt = picture + text(3), .max_tokens = 3});
    h.submit({.prompt = text(5) + picture, .max_tokens = 3});
    h.submit({.prompt = text(5) + picture + picture + text(1), .max_tokens = 3});
  }
  h.submit({.prompt = text(500), .max_tokens = 20});
  h.finish();
}

// Whatever the budget is for prompts: in one step all of it, or nothing.
TEST_P(Media, ThatCantBeCutAreComputedInOneStep) {
  Harness h(config());
  for (int i = 0; i < 3; ++i) h.submit({.prompt = text(10), .max_tokens = 60});
  for (int i = 0; i < 4; ++i) h.step();
  const auto before = h.executor().steps().size();
  h.submit({.prompt = text(21) + whole() + text(40), .max_tokens = 2});
  h.finish();
  int with_picture = 0;
  for (std::size_t i = before; i < h.executor().steps().size(); ++i) {
    for (const auto& part : h.executor().steps()[i].sequences) {
      const bool before_end = part.first_position < 21 + kRows;
      if (part.first_position + part.n_rows <= 21 || !before_end) continue;
      if (part.n_rows > 1) ++with_picture;
    }
  }
  EXPECT_EQ(with_picture, 1) << "half of the budget is 170, the picture has 300 rows";
}

TEST_P(Media, ThatFitIntoNoStepAreRefusedWithTheFigures) {
  Harness h(config());
  const auto fits = h.submit({.prompt = text(3) + whole(0, 333) + text(3), .max_tokens = 2});
  const auto long_one = h.submit({.prompt = text(3) + whole(0, 334) + text(3), .max_tokens = 2});
  const auto causal_one = h.submit({.prompt = text(3) + causal(2, 450) + text(3), .max_tokens = 2});
  h.finish();
  EXPECT_FALSE(h.result(fits).refusal);
  EXPECT_FALSE(h.result(causal_one).refusal) << "it may be cut";
  EXPECT_EQ(h.result(long_one).refusal, engine::Refusal::kTooLong);
  EXPECT_NE(h.result(long_one).message.find("334"), std::string::npos) << h.result(long_one).message;
  EXPECT_NE(h.result(long_one).message.find("333"), std::string::npos) << h.result(long_one).message;
}

// Alone: who shares its steps goes on.
TEST_P(Media, ThatTheDeviceCantComputeAreRefused) {
  Harness h(config());
  h.executor().refuse(/*embeddings=*/false, /*positions=*/true);
  const auto other = h.submit({.prompt = text(20), .max_tokens = 20});
  const auto grid = h.submit({.prompt = text(3) + whole(4) + text(3), .max_tokens = 2});
  const auto line = h.submit({.prompt = text(3) + whole() + text(3), .max_tokens = 2});
  for (int i = 0; i < 3; ++i) h.step();
  h.executor().refuse(/*embeddings=*/true, /*positions=*/true);
  const auto late = h.submit({.prompt = text(3) + causal() + text(3), .max_tokens = 2});
  h.finish();
  EXPECT_FALSE(h.result(other).refusal || h.result(line).refusal);
  EXPECT_TRUE(h.result(grid).refusal && h.result(late).refusal);
}

// The picture is longer than the share of all but the first, who goes on for long.
TEST_P(Media, FindRoomBesideALongPrompt) {
  Harness h(config());
  h.submit({.prompt = text(3000), .max_tokens = 2, .priority = -1});
  const auto pictures = {h.submit({.prompt = text(3) + whole() + text(3), .max_tokens = 1}),
                         h.submit({.prompt = text(3) + whole(0, 290) + text(3), .max_tokens = 1}),
                         h.submit({.prompt = text(3) + whole(0, 280) + text(3), .max_tokens = 1})};
  const auto done = [&] { return std::ranges::all_of(pictures, [&](auto id) { return h.result(id).done; }); };
  for (int i = 0; i < 9 + 2 * depth() && !done(); ++i) h.step();
  EXPECT_TRUE(done()) << "each waits for one step of the others at most";
  h.finish();
}

// Eight ask about one picture; most of their prompts end in the block in which it does.
TEST_P(Media, AreComputedOnceForAllWhoWait) {
  for (const std::size_t own : {2, 30}) {
    Harness h(config());
    const Prompt stem = text(17) + whole();
    for (int i = 0; i < 8; ++i) h.submit({.prompt = stem + text(own), .max_tokens = 6});
    h.finish();
    const auto all = static_cast<std::int64_t>(stem.size() + 8 * own);
    if (groups() == Groups::kFullAndRecurrent) continue;  // a state stands at whole blocks where it may be cut
    EXPECT_LE(h.snapshot().computed_tokens, all + 8 * 8) << "the last block's tokens may be computed by each";
  }
}

TEST_P(Media, AreFoundLater) {
  Harness h(config());
  for (const Prompt& picture : {whole(), causal()}) {
    const Prompt stem = text(19) + picture + text(10);
    h.submit({.prompt = stem + text(10), .max_tokens = 30});
    h.finish();
    const auto again = h.submit({.prompt = stem + text(10), .max_tokens = 3});
    h.finish();
    EXPECT_GE(h.result(again).usage.cached_tokens, 19 + kRows);
  }
}

TEST_P(Media, OfEqualSymbolsAreNotMistaken) {
  Harness h(config());
  const Prompt head = text(19), tail = text(20);
  for (int round = 0; round < 2; ++round) {
    for (int which = 0; which < 4; ++which) {
      const Prompt picture = which < 2 ? whole(which) : causal(which);
      const auto id = h.submit({.prompt = head + picture + tail, .max_tokens = 4});
      h.finish();
      const auto cached = h.result(id).usage.cached_tokens;
      EXPECT_TRUE(round == 0 ? cached <= 19 : cached >= 19 + kRows) << cached;
    }
  }
}

TEST_P(Media, SamplesAndScoresAndEmbeddings) {
  Harness h(config());
  for (const Prompt& picture : {whole(1), causal(2, 70), whole(4), causal(6, 44)}) {
    const Prompt prompt = text(13) + picture + text(25) + picture + text(2);
    h.submit({.prompt = prompt, .max_tokens = 20, .n = 3});
    h.submit({.prompt = prompt, .max_tokens = 2, .scored_from = 1, .n_top = 2});
    h.submit({.prompt = prompt, .max_tokens = 2, .scored_from = 14, .n_top = 1});
    h.submit({.prompt = picture + text(3) + picture, .max_tokens = 2, .scored_from = 0});
    h.submit({.prompt = prompt, .only_prompt = true, .pooling = engine::Pooling::kMean});
    h.submit({.prompt = text(3) + picture, .only_prompt = true, .pooling = engine::Pooling::kLast});
  }
  h.finish();
}

// A step has room for few rows that are scored: those of pictures foretell no token and take none.
TEST_P(Media, TakeNoRowsThatAreScored) {
  HarnessConfig few = config();
  few.scored_rows = 7;
  Harness h(few);
  const auto id = h.submit({.prompt = text(13) + whole() + text(25), .max_tokens = 2, .scored_from = 1, .n_top = 1});
  h.finish();
  EXPECT_EQ(h.result(id).prompt.size(), 38U);
  for (const auto& step : h.executor().steps()) EXPECT_LE(step.n_logits, 8U);
}

TEST_P(Media, PinsEndWhereThePromptMayBeCut) {
  if (groups() == Groups::kFullAndRecurrent) return;  // states decide there
  HarnessConfig pinned = config();
  pinned.pin_share = 1;
  Harness h(pinned);
  const auto id = h.submit({.prompt = text(19) + whole() + text(40),
                            .max_tokens = 2,
                            .pins = {{.tokens = 100, .ttl = std::chrono::seconds(60)},
                                     {.tokens = 19 + kRows + 20, .ttl = std::chrono::seconds(60)}}});
  h.finish();
  const auto& pins = h.result(id).usage.pins;
  ASSERT_EQ(pins.size(), 2U);
  ASSERT_TRUE(pins[0].prefix && pins[1].prefix);
  EXPECT_EQ(pins[0].prefix->pinned_tokens, 16) << "100 is in the picture";
  EXPECT_EQ(pins[1].prefix->pinned_tokens, (19 + kRows + 20) / 8 * 8);
}

// A pool that is too small for all, cancellations, samples, scores, priorities: nothing is ever cut, half matched or
// mistaken.
TEST_P(Media, AnyLoad) {
  const auto seed = test_seed(20261127 + static_cast<std::uint64_t>(depth()));
  std::mt19937_64 dice(seed);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(dice); };
  const std::int64_t wanted = operations_wanted(test::kSanitized ? 400 : 2500);
  constexpr std::int64_t kPreemptions = test::kSanitized ? 1 : 10;
  std::int64_t steps = 0, preemptions = 0, found = 0;
  // How often somebody is preempted is chance.
  while ((steps < wanted || (preemptions < kPreemptions && steps < 20 * wanted)) && !HasFailure()) {
    HarnessConfig narrow = config();
    narrow.num_blocks = scaled(groups(), pick(110, 180));
    narrow.max_batch = pick(3, 12);
    narrow.patience = pick(0, 20);
    narrow.seed = dice();
    Harness h(narrow);
    std::vector<Prompt> stems = {text(8)};
    std::vector<engine::RequestId> open;
    for (int turn = 0; turn < 300 && !HasFailure(); ++turn) {
      if (pick(0, 3) == 0) {
        Prompt prompt = stems[static_cast<std::size_t>(pick(0, static_cast<int>(stems.size()) - 1))];
        if (pick(0, 2) > 0) {
          const int rows = pick(0, 2) > 0 ? kRows : pick(1, 60);
          prompt = prompt + words_of({.which = pick(0, 5), .rows = rows, .whole = pick(0, 3) > 0});
        }
        if (pick(0, 3) > 0) prompt = prompt + random_prompt(dice, static_cast<std::size_t>(pick(1, 40)), 2);
        if (prompt.size() > 640) continue;
        if (stems.size() < 12) stems.push_back(prompt);
        Submission asked{.prompt = prompt, .max_tokens = pick(1, 40), .n = pick(0, 4) == 0 ? 2 : 1, .seed = dice()};
        asked.priority = pick(-1, 1);
        asked.payer = std::string(1, static_cast<char>('a' + pick(0, 2)));
        if (pick(0, 5) == 0) asked.scored_from = pick(0, 30);
        if (asked.scored_from) asked.n_top = 1;
        open.push_back(h.submit(std::move(asked)));
      }
      if (pick(0, 15) == 0 && !open.empty())
        h.cancel(open[static_cast<std::size_t>(pick(0, static_cast<int>(open.size()) - 1))]);
      h.step();
      ++steps;
    }
    h.finish();
    preemptions += h.snapshot().preemptions;
    found += h.snapshot().cached_tokens;
  }
  std::cout << steps << " steps, " << preemptions << " preemptions, " << found << " tokens found\n";
  EXPECT_GE(preemptions, kPreemptions);
  EXPECT_GE(found, kRows);
}

COPPICE_FOR_ALL_DEPTHS(Media);

}  // namespace
}  // namespace coppice::testing
