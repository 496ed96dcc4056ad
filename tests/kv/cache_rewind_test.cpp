// Slots that are taken back: guesses that were wrong.
#include <gtest/gtest.h>

#include <set>

#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

class CacheRewindTest : public KvTest {};

TEST_P(CacheRewindTest, GivesBackBlocksAndPromises) {
  open(24);
  const SeqId seq = run(words(100, bs()));
  const auto free = stats().free, reserved = stats().reserved;
  ASSERT_TRUE(rig().extend(seq, words(500, bs() + 3)));
  EXPECT_EQ(stats().free, free - 2 * n_groups());
  rig().rewind(seq, bs() + 2);
  EXPECT_EQ(stats().free, free - n_groups());
  EXPECT_EQ(stats().reserved, reserved - n_groups());
  rig().rewind(seq, bs());
  EXPECT_EQ(stats().free, free);
  EXPECT_EQ(stats().reserved, reserved);
  EXPECT_EQ(lengths(seq).len, bs());
  feed(seq, words(700, 2));
}

TEST_P(CacheRewindTest, OnlyWhatIsAcceptedIsFound) {
  open(24);
  const Tokens text = words(100, bs() - 1);
  const SeqId seq = run(text);
  const Tokens guesses = words(500, 5);
  ASSERT_TRUE(rig().extend(seq, guesses));
  rig().run_step([](const Story&, std::int32_t) { return 2; });
  EXPECT_EQ(lengths(seq).len, bs() + 1);
  feed(seq, {7});
  rig().finish(seq);
  EXPECT_EQ(rig().match(text + guesses), bs() + 1);
  EXPECT_EQ(rig().match(text + words(500, 2) + Tokens{7}), bs() + 2);
}

// A step in flight writes where others have blocks by the time it runs: each of these is written again, later.
TEST_P(CacheRewindTest, BlocksOfAStepInFlightGoToOthers) {
  open(24);
  const SeqId seq = run(words(100, bs()));
  ASSERT_TRUE(rig().extend(seq, words(500, bs())));
  rig().submit(/*runs_at_once=*/false);
  const auto last_blocks = [&](SeqId of) {
    std::set<kv::BlockId> blocks;
    for (int g = 0; g < n_groups(); ++g) blocks.insert(blocks_of(of, g).back());
    return blocks;
  };
  const auto given_back = last_blocks(seq);
  rig().rewind(seq, bs());
  const SeqId other = start(words(900, bs()));
  ASSERT_TRUE(rig().extend(other, words(900, bs())));
  EXPECT_EQ(last_blocks(other), given_back);
  rig().submit(/*runs_at_once=*/false);
  while (rig().in_flight() > 0) rig().collect();
  expect_contiguous(other);
  feed(seq, words(700, 3));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheRewindTest, testing::ValuesIn(all_shapes()), shape_name);

class StateRewindTest : public KvTest {};

// The state behind a guess is nobody's: a draft step leaves the one before it alone, and none is kept unless all is
// accepted.
TEST_P(StateRewindTest, TheStateBeforeADraftStays) {
  open(60);
  const Tokens text = words(100, bs());
  const SeqId seq = run(text);
  feed(seq, {1});
  rig().keep_state(seq, 2 * bs());
  const auto before = rig().cache().state(seq).in.front();
  const auto reserved = stats().reserved;
  const Tokens guesses = words(500, bs() - 1);  // up to where a state would be kept
  const auto found = rig().match(text + Tokens{1} + guesses);
  ASSERT_TRUE(rig().extend(seq, guesses, /*draft=*/true));
  EXPECT_NE(rig().cache().state(seq).out.front(), before);
  rig().run_step([](const Story&, std::int32_t) { return 0; });
  EXPECT_EQ(rig().cache().state(seq).in.front(), before);
  EXPECT_EQ(stats().reserved, reserved);
  EXPECT_EQ(rig().match(text + Tokens{1} + guesses), found);

  ASSERT_TRUE(rig().extend(seq, words(700, 2), /*draft=*/true));
  rig().run_step();
  EXPECT_NE(rig().cache().state(seq).in.front(), before);
  EXPECT_EQ(stats().reserved, reserved) << "the unit that was left is promised again";
}

INSTANTIATE_TEST_SUITE_P(Shapes, StateRewindTest, testing::ValuesIn(shapes({Groups::kFullAndRecurrent})), shape_name);

TEST(RewindContractTest, WhatIsComputedStays) {
  kv::Cache cache(make_config({.groups = Groups::kFull, .block_size = 8}, 10));
  const Tokens prompt = words(1, 9);
  const SeqId seq = cache.admit({.prompt = prompt}).value();
  std::vector<kv::BlockOp> ops;
  ASSERT_TRUE(cache.extend(seq, 9, ops));
  cache.publish(seq, prompt);
  EXPECT_DEATH(cache.rewind(seq, 8), "broken contract: len >= seq.computed_len");
  EXPECT_DEATH(cache.rewind(seq, 10), "broken contract");
}

}  // namespace
}  // namespace coppice::test
