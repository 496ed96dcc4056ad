// Sliding groups: what leaves a window, what stays in the tree, and what a hole does to a match.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

class CacheWindowTest : public KvTest {
 protected:
  /// Blocks that a sequence of `len` computed tokens no longer needs, in one group and over all.
  int passed(int group, int len) const {
    const auto specs = make_groups(GetParam().groups, bs());
    const kv::GroupSpec& spec = specs[static_cast<std::size_t>(group)];
    if (spec.kind == kv::GroupKind::kFull) return 0;
    return (spec.chunked ? (len - 1) - (len - 1) % spec.window : std::max(0, len - spec.window)) / bs();
  }
  int all_passed(int len) const {
    int sum = 0;
    for (int g = 0; g < n_groups(); ++g) sum += passed(g, len);
    return sum;
  }
  /// Blocks of a match of `len` tokens that its next token won't see, over all groups.
  int all_unseen(int len) const {
    int sum = 0;
    for (const kv::GroupSpec& spec : make_groups(GetParam().groups, bs())) {
      if (spec.kind == kv::GroupKind::kFull) continue;
      sum += (spec.chunked ? len - len % spec.window : std::max(0, len + 1 - spec.window)) / bs();
    }
    return sum;
  }
  /// A step with the tokens of a prompt's block.
  void feed_block(KvRig& rig, SeqId seq, const Tokens& prompt, int block) {
    const auto tokens =
        std::span(prompt).subspan(static_cast<std::size_t>(block * bs()), static_cast<std::size_t>(bs()));
    ASSERT_TRUE(rig.extend(seq, tokens)) << rig.failure();
    rig.run_step();
  }
  /// The blocks of two groups with one window go together: the last eviction may take one more than are wanted.
  void expect_evictions(int wanted) {
    EXPECT_GE(stats().evictions, wanted);
    EXPECT_LE(stats().evictions, wanted + 1);
  }
};

//  full      |0|1|2|3|4|5|
//  sliding   |-|-|-|-|4|5|      - is the null block; 4 and 5 keep their index
TEST_P(CacheWindowTest, PassedBlocksAreNullAtTheirIndex) {
  open(20);
  const SeqId seq = run(words(100, 6 * bs()));
  for (int g = 0; g < n_groups(); ++g) {
    const Tokens table = blocks_of(seq, g);
    ASSERT_EQ(table.size(), 6U);
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(table[static_cast<std::size_t>(i)] == kv::kNullBlock, i < passed(g, 6 * bs())) << g << ", " << i;
    }
  }
  EXPECT_EQ(stats().in_use, 6 * n_groups() - all_passed(6 * bs()));
  EXPECT_EQ(stats().cached, all_passed(6 * bs())) << "the tree keeps what the window left";

  const Tokens before = blocks_of(seq, 1);
  feed(seq, words(900, 3));
  EXPECT_EQ(blocks_of(seq, 1)[5], passed(1, 6 * bs() + 3) > 5 ? kv::kNullBlock : before[5])
      << "dropping moves no index";
}

// A chunk longer than every window: all of it was computed, so all of it is known.
TEST_P(CacheWindowTest, AChunkLongerThanTheWindowIsPublishedWhole) {
  open(20);
  const SeqId seq = run(words(100, 6 * bs()));
  for (int n = 1; n <= 6 * bs(); ++n) EXPECT_EQ(rig().match(words(100, n) + Tokens{9}), n);
  rig().abandon(seq);
  EXPECT_EQ(stats().in_use, 0);
}

// The slow one's window still covers what the fast one left.
TEST_P(CacheWindowTest, ABlockIsInUseWhileAnyWindowNeedsIt) {
  open(24);
  const Tokens prompt = words(100, 2 * bs());
  const SeqId fast = run(prompt), slow = run(prompt);
  std::vector<Tokens> needed;
  for (int g = 0; g < n_groups(); ++g) needed.push_back(blocks_of(slow, g));
  feed(fast, words(900, 4 * bs()));
  for (int g = 1; g < n_groups(); ++g) {
    EXPECT_EQ(blocks_of(fast, g)[1], kv::kNullBlock);
    EXPECT_EQ(blocks_of(slow, g), needed[static_cast<std::size_t>(g)]);
  }
  const std::int64_t cached = stats().cached;
  feed(slow, words(800, 4 * bs()));
  EXPECT_GT(stats().cached, cached) << "now nobody needs it";
}

TEST_P(CacheWindowTest, AMatchTakesOnlyTheWindow) {
  open(24);
  serve(words(100, 6 * bs()));
  const SeqId seq = start(words(100, 6 * bs()) + Tokens{9});
  EXPECT_EQ(lengths(seq).cached_len, 6 * bs());
  EXPECT_EQ(stats().in_use, 6 * n_groups() - all_unseen(6 * bs()));
}

//  full      |0|1|2|3|4|5|   kept
//  sliding   |.|.|2|3|4|5|   holes where eviction took what every window had left
TEST_P(CacheWindowTest, PassedBlocksAreEvictedBeforeUsefulOnes) {
  open(8);
  const Tokens text = words(100, 6 * bs());
  serve(text);
  ASSERT_GE(all_passed(6 * bs()), n_groups());
  const SeqId other = run(words(900, 3 * bs()));
  expect_evictions(n_groups());
  EXPECT_EQ(rig().match(text), 6 * bs()) << "nothing that this match needs was evicted\n" << rig().cache().dump();

  int shortened = 0;
  for (int n = 1; n < 6 * bs(); ++n) shortened += rig().match(words(100, n)) < n ? 1 : 0;
  EXPECT_GT(shortened, 0) << "a prefix whose window has a hole can't match whole";
  rig().finish(other);
  // Whoever stands on a shortened match reads its own bytes.
  for (int n = bs(); n < 6 * bs(); n += bs() / 2) {
    rig().finish(start(words(100, n)));
  }
}

// Computing the text again fills the hole.
TEST_P(CacheWindowTest, AHoleIsFilledByWhoComputesItAgain) {
  open(8);
  const Tokens text = words(100, 6 * bs());
  serve(text);
  serve(words(900, 3 * bs()));
  int n = 6 * bs();  // the longest shortened prefix of whole blocks
  while (n > 0 && rig().match(words(100, n)) == n) n -= bs();
  ASSERT_GT(n, 0);
  serve(words(100, n));
  EXPECT_EQ(rig().match(words(100, n)), n) << rig().cache().dump();
}

//                      .- |a|a|a|a|a|a|
//   |c|c|c|c| ---------+                    the window before the branch is kept longer than what lies
//                      '- |b|b|b|b|b|b|    in the middle of a, of b and of c
TEST_P(CacheWindowTest, TheWindowBeforeABranchIsKeptLonger) {
  open(18);
  const Tokens common = words(100, 4 * bs());
  serve(common + words(1000, 6 * bs()));
  serve(common + words(2000, 6 * bs()));
  serve(words(5000, 5 * bs()));
  expect_evictions(3 * n_groups());
  EXPECT_EQ(rig().match(common + Tokens{9}), 4 * bs()) << rig().cache().dump();
  EXPECT_EQ(rig().match(common + words(1000, 6 * bs())), 10 * bs());
  EXPECT_EQ(rig().match(common + words(2000, 6 * bs())), 10 * bs());
}

// The same, when the second text had left that window before its first block made the branch.
TEST_P(CacheWindowTest, TheWindowBeforeABranchIsWarmedWhenTheBranchAppears) {
  open(18);
  const Tokens common = words(100, 4 * bs()), second = common + words(2000, 6 * bs());
  serve(common + words(1000, 6 * bs()));
  const SeqId seq = start(second);
  feed(seq, words(2000, bs() - 1));
  prefill(seq, second);
  rig().finish(seq);
  serve(words(5000, 5 * bs()));
  EXPECT_EQ(rig().match(common + Tokens{9}), 4 * bs()) << rig().cache().dump();
}

//  |c|c|c|e          The second branch's node begins at its second block. Its window lies where it does
//  | | '-|d|         in the whole text, also where that is above the node.
//  | '---|b|
TEST_P(CacheWindowTest, TheWindowOfABranchBelowABranchIsWarmed) {
  open(14);
  const Tokens common = words(100, 3 * bs()), second = common + words(2000, bs());
  serve(words(100, bs()) + words(3000, bs()));
  serve(common + words(1000, bs()));
  const SeqId seq = start(second);
  feed(seq, words(2000, bs() - 1));
  prefill(seq, second);
  rig().finish(seq);
  serve(words(5000, 9 * bs()));
  EXPECT_GT(stats().evictions, 0);
  EXPECT_EQ(rig().match(common + Tokens{9}), 3 * bs()) << rig().cache().dump();
}

//   |c c c c 1 ..|1|1|1|1|1|    the nearer sibling lost its first block in the sliding groups;
//   |c c c c 2 ..|2|            the other one still has its own
TEST_P(CacheWindowTest, ASiblingWithoutAHoleServesAMatchThatEndsInsideABlock) {
  open(9);
  const int half = bs() / 2;
  const Tokens common = words(100, half);
  serve(common + words(2000, half));
  serve(common + words(1000, 6 * bs()));
  const std::int64_t before = stats().evictions;
  serve(words(5000, 3 * bs()));
  ASSERT_GT(stats().evictions, before);
  EXPECT_EQ(rig().match(common + Tokens{900, 901}), half) << rig().cache().dump();
}

// The prompt is longer than what a window lets it hold: admission asks for no more than it will hold at once.
TEST_P(CacheWindowTest, ALongPromptReservesWhatItHoldsAtOnce) {
  kv::CacheConfig config = make_config(GetParam(), 30);
  config.max_extend = bs();
  config.num_blocks = 1 + 24 + 8 * n_groups();
  KvRig rig(config);
  const Tokens prompt = words(100, 20 * bs());
  EXPECT_LT(rig.cache().blocks_needed(20 * bs(), 1), 20 * n_groups());
  const auto seq = rig.admit(prompt);
  ASSERT_TRUE(seq) << rig.failure();
  for (int at = 0; at < 20; ++at) feed_block(rig, *seq, prompt, at);
  EXPECT_EQ(rig.failure(), "");
  rig.drain();
  EXPECT_EQ(rig.failure(), "");
}

// A pin, or a sequence that stays, holds a window that a longer prompt stands on: when that prompt goes on, it gets
// nothing back. In pools of all sizes: whoever is let in gets through.
TEST_P(CacheWindowTest, AWindowThatOthersUsePaysForNothing) {
  const Tokens common = words(100, 8 * bs()), prompt = common + words(900, 16 * bs());
  kv::CacheConfig config = make_config(GetParam(), 30);
  config.groups.resize(2);
  config.groups[1].window *= 4;  // of more blocks than are reserved beside it
  config.max_extend = bs();
  for (const bool pinned : {false, true}) {
    int admitted = 0, refused = 0;
    for (config.num_blocks = 30; config.num_blocks < 60; ++config.num_blocks) {
      KvRig rig(config);
      const auto holder = rig.admit(common);
      ASSERT_TRUE(holder);
      for (int at = 0; at < 8; ++at) feed_block(rig, *holder, common, at);
      if (pinned) {
        ASSERT_TRUE(rig.pin({.prefix = common}));
        rig.finish(*holder);
      }
      const auto seq = rig.admit(prompt);
      ++(seq ? admitted : refused);
      for (int at = 8; seq && at < 24; ++at) feed_block(rig, *seq, prompt, at);
      ASSERT_EQ(rig.failure(), "") << config.num_blocks << " blocks, pinned: " << pinned;
    }
    EXPECT_GT(admitted, 0);
    EXPECT_GT(refused, 0);
  }
}

/// Chunks of two blocks, and of one and a half.
class CacheChunkTest : public CacheWindowTest {};

//  full      |0|1|2|3|4|
//  chunks    |.|.|.|.|4|      the chunk before the border was evicted: no token behind the border sees it
TEST_P(CacheChunkTest, AMatchThatEndsAtABorderNeedsNoChunkBeforeIt) {
  kv::CacheConfig config = make_config(GetParam(), 8);
  config.groups = {config.groups[0], config.groups[1], config.groups[2]};  // chunks of two blocks only
  config.num_blocks = 1 + 8 * 3;
  KvRig rig(config);
  const auto serve = [&](const Tokens& text) {
    const auto seq = rig.admit(text);
    ASSERT_TRUE(seq) << rig.failure();
    const auto known = static_cast<std::size_t>(rig.live().at(*seq).len());
    ASSERT_TRUE(rig.extend(*seq, std::span(text).subspan(known))) << rig.failure();
    rig.run_step();
    rig.finish(*seq);
  };
  const Tokens text = words(100, 5 * bs());
  serve(text);
  while (rig.cache().match(words(100, 3 * bs() + 1), {}) > 2 * bs())
    serve(words(1000 + 100 * static_cast<int>(rig.operations()), bs()));
  EXPECT_EQ(rig.match(text), 5 * bs());
  EXPECT_EQ(rig.match(words(100, 4 * bs()) + Tokens{9}), 4 * bs()) << rig.cache().dump();
  EXPECT_LT(rig.match(words(100, 4 * bs() - 1)), 4 * bs() - 1) << "its last token would see what was evicted";
  serve(words(100, 4 * bs()) + words(900, bs()));
  rig.verify();
  EXPECT_EQ(rig.failure(), "");
}

// A request whose prompt ends at a border comes again: its last token's chunk is still there, and not among the first
// to go.
TEST_P(CacheChunkTest, TheChunkBeforeABorderIsKeptForTheLastToken) {
  open(8);
  const Tokens text = words(100, 4 * bs());
  const SeqId seq = run(text);
  EXPECT_NE(blocks_of(seq, 1)[2], kv::kNullBlock);
  EXPECT_EQ(blocks_of(seq, 1)[1], kv::kNullBlock);
  rig().finish(seq);
  serve(words(5000, 5 * bs()));
  EXPECT_GT(stats().evictions, 0);
  EXPECT_EQ(rig().match(words(100, 4 * bs() - 1)), 4 * bs() - 1) << rig().cache().dump();
}

//  |0|1|2|3|4|    block by block: behind the border a chunk's two blocks are free at once, and one is yet to come
TEST_P(CacheChunkTest, ABorderPromisesNoMoreThanThePromptLacks) {
  kv::CacheConfig config = make_config(GetParam(), 20);
  config.max_extend = bs();
  KvRig rig(config);
  const Tokens prompt = words(100, 5 * bs());
  const auto seq = rig.admit(prompt);
  ASSERT_TRUE(seq) << rig.failure();
  for (int at = 0; at < 5 * bs(); at += bs() / 2) {
    ASSERT_TRUE(
        rig.extend(*seq, std::span(prompt).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bs() / 2))))
        << rig.failure();
    rig.run_step();
    EXPECT_LE(rig.cache().reserved(*seq), n_groups() * (2 + 5 - at / bs() - 1)) << "at " << at;
  }
  EXPECT_EQ(rig.cache().reserved(*seq), 2 * n_groups());
  EXPECT_EQ(rig.failure(), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheChunkTest, testing::ValuesIn(shapes({Groups::kFullAndChunked})), shape_name);
INSTANTIATE_TEST_SUITE_P(Shapes, CacheWindowTest, testing::ValuesIn(sliding_shapes()), shape_name);

}  // namespace
}  // namespace coppice::test
