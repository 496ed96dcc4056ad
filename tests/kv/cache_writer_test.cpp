// The prefill writer and copy on write: where new rows go, what is forked, and what is not.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

class CacheWriterTest : public KvTest {};

//  |################|################|####............|      one write from an empty table
TEST_P(CacheWriterTest, ColdPromptReadsBackAsAContiguousBuffer) {
  open(8);
  const SeqId seq = start(words(100, 2 * bs() + bs() / 4));
  ASSERT_TRUE(rig().extend(seq, words(100, 2 * bs() + bs() / 4)));
  rig().run_step();
  expect_contiguous(seq);
  EXPECT_EQ(stats().cow_forks, 0);
}

//  |aaaaaaaaaaaaaaaa|aaaaaaaaaaaaaaaa|bbbbbbbbbbbbbbbb|bbbbbbbbbbbbbbbb|
TEST_P(CacheWriterTest, AlignedWritesStartAtABlockBoundary) {
  open(8);
  const Tokens prompt = words(100, 4 * bs());
  const SeqId seq = start(prompt);
  feed(seq, words(100, 2 * bs()));
  const Tokens first_half = blocks_of(seq);
  feed(seq, words(100 + 2 * bs(), 2 * bs()));
  expect_contiguous(seq);
  EXPECT_EQ(first_blocks_of(seq, 2), first_half) << "a block moved";
  EXPECT_EQ(stats().cow_forks, 0);
}

//  |aaaaaaabbbbbbbbb|bbbbbbbbbbbbbbbb|bbb.............|
TEST_P(CacheWriterTest, PartialFirstAndLastBlock) {
  open(8);
  const int head = bs() / 2 - 1;
  const Tokens prompt = words(100, 2 * bs() + 3);
  const SeqId seq = start(prompt);
  feed(seq, words(100, head));
  feed(seq, words(100 + head, 2 * bs() + 3 - head));
  expect_contiguous(seq);
  EXPECT_EQ(stats().cow_forks, 0) << "a tail of one's own is written in place";
}

//                         .-> |aaaaaXYZ|    the first writer forks
//  |aaaaaaaa| - |aaaaa...|
//                         '-> |aaaaaUVW|    the last owner writes in place
TEST_P(CacheWriterTest, FirstWriterForksLastOwnerWritesInPlace) {
  open(8);
  const Tokens prompt = words(100, bs() + 5);
  const SeqId first = run(prompt, {}, 2);
  const SeqId last = rig().fork(first);
  EXPECT_EQ(blocks_of(first), blocks_of(last));
  EXPECT_EQ(stats().max_refs, 2);
  const auto shared_tail = blocks_of(first).back();

  feed(first, words(900, 3));
  EXPECT_EQ(stats().cow_forks, n_groups());
  EXPECT_NE(blocks_of(first).back(), shared_tail);
  feed(last, words(800, 3));
  EXPECT_EQ(stats().cow_forks, n_groups()) << "the last owner must not fork";
  EXPECT_EQ(blocks_of(last).back(), shared_tail);
  expect_contiguous(first);
  expect_contiguous(last);
}

// Both writes in one step: the copy of the first must see the block as it was before the second wrote into
// it.
TEST_P(CacheWriterTest, ForkAndInPlaceWriteInOneStep) {
  open(8);
  const SeqId first = run(words(100, bs() + 5), {}, 2);
  const SeqId last = rig().fork(first);
  ASSERT_TRUE(rig().extend(first, words(900, 2)));
  ASSERT_TRUE(rig().extend(last, words(800, 2)));
  EXPECT_EQ(rig().copies_in_hand().size(), static_cast<std::size_t>(n_groups()));
  rig().run_step();
  expect_contiguous(first);
  expect_contiguous(last);
}

TEST_P(CacheWriterTest, SamplesForkThePromptWithoutCopying) {
  open(16);
  const SeqId first = run(words(100, 2 * bs() + 5), {}, 4);
  const auto before = stats();
  std::vector<SeqId> samples = {first};
  for (int i = 1; i < 4; ++i) samples.push_back(rig().fork(first));
  EXPECT_EQ(stats().in_use, before.in_use);
  EXPECT_EQ(stats().free, before.free);
  EXPECT_EQ(stats().max_refs, 4);
  for (int i = 0; i < 4; ++i) feed(samples[static_cast<std::size_t>(i)], words(1000 * (i + 1), bs()));
  EXPECT_EQ(stats().cow_forks, 3 * n_groups()) << "three fork, the last writes in place";
  for (const SeqId s : samples) expect_contiguous(s);
}

// 45 tokens end inside a block at every block size.
TEST_P(CacheWriterTest, FortyFiveSharedTokensAreFortyFiveCachedTokens) {
  open(24);
  const Tokens shared = words(100, 45);
  serve(shared + words(500, 7));
  const SeqId seq = start(shared + words(700, 9));
  EXPECT_EQ(lengths(seq).cached_len, 45);
  EXPECT_EQ(stats().cow_forks, 0) << "a hit copies nothing";
  EXPECT_TRUE(rig().copies_in_hand().empty());

  ASSERT_TRUE(rig().extend(seq, words(700, 9)));
  EXPECT_EQ(rig().copies_in_hand().size(), static_cast<std::size_t>(n_groups()));
  for (const kv::BlockOp& op : rig().copies_in_hand()) EXPECT_EQ(op.n_slots, 45 % bs());
  rig().run_step();
  // The one whose block was forked still reads its own bytes.
  const SeqId again = start(shared + words(500, 8));
  EXPECT_EQ(lengths(again).cached_len, 52);
}

TEST_P(CacheWriterTest, OnlyTheSuffixIsAllocated) {
  open(24);
  const Tokens shared = words(100, 4 * bs());
  const SeqId leader = run(shared);
  const auto before = stats();
  const SeqId follower = run(shared + words(500, 2 * bs()));
  EXPECT_EQ(lengths(follower).cached_len, 4 * bs());
  EXPECT_EQ(before.free - stats().free, 2 * n_groups());
  // Whatever window they remember, both stand on the same blocks.
  EXPECT_EQ(first_blocks_of(follower, 4), blocks_of(leader));
}

TEST_P(CacheWriterTest, LoneRequestDecodingTwoHundredTokensNeverForks) {
  open(40);
  const SeqId seq = run(words(100, bs() + 3));
  for (int i = 0; i < 200; ++i) feed(seq, {5000 + i});
  EXPECT_EQ(stats().cow_forks, 0);
  EXPECT_EQ(lengths(seq).computed_len, bs() + 3 + 200);
  expect_contiguous(seq);
}

// A sample that is done leaves the shared tail to the tree: the next writer forks it, though no sequence
// shares it.
TEST_P(CacheWriterTest, TailLeftToTheTreeIsForked) {
  open(12);
  const SeqId one = run(words(100, bs() + 5), {}, 2);
  const SeqId two = rig().fork(one);
  rig().finish(one);
  feed(two, words(800, 2));
  EXPECT_EQ(stats().cow_forks, n_groups());
  EXPECT_EQ(rig().match(words(100, bs() + 5)), bs() + 5);
}

// An abandoned sample leaves nothing: the other is the last owner.
TEST_P(CacheWriterTest, TailOfAnAbandonedSampleIsWrittenInPlace) {
  open(12);
  const SeqId one = run(words(100, bs() + 5), {}, 2);
  const SeqId two = rig().fork(one);
  rig().abandon(one);
  feed(two, words(800, 2));
  EXPECT_EQ(stats().cow_forks, 0);
}

// The forked source is let go of and reused by another write of the same step.
TEST_P(CacheWriterTest, BlockFreedAndReusedWithinAStep) {
  open(9);
  const SeqId one = run(words(100, 5), {}, 2);
  const SeqId two = rig().fork(one);
  ASSERT_TRUE(rig().extend(one, words(900, 2)));  // forks: a copy of the shared tail is planned
  rig().abandon(two);                             // frees the copy's source
  const Tokens other = words(300, 3 * bs());
  const SeqId three = start(other);
  ASSERT_TRUE(rig().extend(three, other));  // may get the freed block
  rig().run_step();
  expect_contiguous(one);
  expect_contiguous(three);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheWriterTest, testing::ValuesIn(all_shapes()), shape_name);

}  // namespace
}  // namespace coppice::test
