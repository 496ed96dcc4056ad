// States of recurrent layers: what a match finds, what eviction takes first, and what is counted. KvRig checks what is
// in them.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

using kv::MatchEnded;

class CacheStateTest : public KvTest {
 protected:
  /// A prompt in steps that end where states are kept.
  SeqId compute(const Tokens& prompt, int n_samples = 1) {
    const SeqId seq = start(prompt, {}, n_samples);
    const auto size = static_cast<std::int32_t>(prompt.size());
    while (lengths(seq).len < size) {
      const std::int32_t len = lengths(seq).len;
      feed(seq, {prompt.begin() + len, prompt.begin() + std::min(size, rig().cache().next_state(seq))});
    }
    return seq;
  }
  Tokens pages(SeqId seq) {
    const auto in = rig().cache().state(seq).in;
    return {in.begin(), in.end()};
  }
  std::int32_t match(const Tokens& tokens) { return rig().match(tokens); }
};

TEST_P(CacheStateTest, AreKeptAtStridesBeforeThePromptsEndAndAtTheEnd) {
  open(60);
  const Tokens prompt = words(100, 5 * bs() + 3);
  rig().finish(compute(prompt));
  EXPECT_EQ(stats().states_cached, 4) << "two strides of two blocks, five blocks, the end";
  EXPECT_EQ(stats().cached, 6 * n_groups() + 4 * kStatePages);
  for (int length = 1; length <= 5 * bs() + 3; ++length) {
    const int whole = length / bs();
    const int expected = length == 5 * bs() + 3 ? length : whole == 5 ? 5 * bs() : whole / 2 * 2 * bs();
    EXPECT_EQ(match({prompt.begin(), prompt.begin() + length}), expected) << length;
  }
}

TEST_P(CacheStateTest, AMatchTakesOneAndWritesAnother) {
  open(60);
  const Tokens prompt = words(100, 2 * bs() + 1);
  rig().finish(compute(prompt));
  const SeqId seq = start(prompt + words(500, 10));
  const Tokens kept = pages(seq);
  EXPECT_EQ(stats().states_in_use, 1);
  EXPECT_TRUE(rig().extend(seq, words(500, 3)));
  EXPECT_EQ(stats().states_in_use, 2);
  rig().run_step();
  EXPECT_NE(pages(seq), kept);
  EXPECT_EQ(stats().states_in_use, 1);
  const Tokens own = pages(seq);
  feed(seq, words(503, 3));
  EXPECT_EQ(pages(seq), own) << "nobody else holds it: it is written in place";
  EXPECT_EQ(match(prompt), 2 * bs() + 1) << "what was kept is there";
}

// Strides are of two blocks. An answer's last whole block has a state for those who can't keep what lies inside of one.
TEST_P(CacheStateTest, WithEndsKeptAnAnswersLastWholeBlockHasOne) {
  for (const bool keep_ends : {false, true}) {
    open(80, true, true, keep_ends);
    const Tokens prompt = words(100, 3 * bs() + 1), answer = words(500, 4 * bs());
    const SeqId seq = compute(prompt);
    for (const kv::Token token : answer) feed(seq, {token});
    const Tokens text = prompt + answer;
    const auto matched = [&](int blocks) { return match({text.begin(), text.begin() + blocks * bs()}) / bs(); };
    EXPECT_EQ(matched(7), keep_ends ? 7 : 6);
    EXPECT_EQ(matched(6), 6);
    EXPECT_EQ(matched(5), 4) << "it went when the sequence was further";
    rig().finish(seq);
    EXPECT_EQ(matched(7), keep_ends ? 7 : 6);
    EXPECT_EQ(match(text), 7 * bs() + 1) << "and its end inside of a block, as ever";
  }
}

TEST_P(CacheStateTest, AnEndThatAnotherOneStartedOnStays) {
  open(80, true, true, /*keep_ends=*/true);
  const Tokens prompt = words(100, 3 * bs() + 1), answer = words(500, 4 * bs());
  const SeqId seq = compute(prompt);
  const Tokens text = prompt + answer;
  const Tokens five(text.begin(), text.begin() + 5 * bs());
  for (int i = 0; i < 2 * bs() - 1; ++i) feed(seq, {answer[static_cast<std::size_t>(i)]});
  ASSERT_EQ(match(five), 5 * bs());
  const SeqId other = start(five + words(900, 3));
  EXPECT_EQ(lengths(other).cached_len, 5 * bs());
  rig().finish(other);
  for (int i = 2 * bs() - 1; i < 4 * bs(); ++i) feed(seq, {answer[static_cast<std::size_t>(i)]});
  EXPECT_EQ(match(five), 5 * bs());
  rig().finish(seq);
}

// A state is older than the blocks before it, which its sequence held to the end.
TEST_P(CacheStateTest, GoesBeforeItsBlocks) {
  if (n_groups() > 1) return;
  open(18);
  const Tokens prompt = words(100, 4 * bs() + 1);
  rig().finish(compute(prompt));
  const Tokens half(prompt.begin(), prompt.begin() + 2 * bs());
  EXPECT_EQ(match(half), 2 * bs());
  for (kv::Token other = 1000; match(half) > 0; other += 100) rig().finish(compute(words(other, bs() + 1)));
  const kv::MatchEnd end = rig().cache().explain(half, {});
  EXPECT_EQ(end.why, MatchEnded::kNoState);
  EXPECT_EQ(end.stateless, 2 * bs());
}

TEST_P(CacheStateTest, OnlyTheOneThatWasUsedStays) {
  open(24);
  const Tokens prompt = words(100, 4 * bs() + 1);
  rig().finish(compute(prompt));  // states at two blocks, at four, and at the end
  const Tokens half(prompt.begin(), prompt.begin() + 2 * bs());
  for (kv::Token other = 1000; other < 2500; other += 100) {
    rig().finish(compute(half + words(other, bs() + 1)));
    EXPECT_EQ(match(half), 2 * bs()) << "it is used again and again";
  }
  EXPECT_GT(stats().evictions, 0);
  EXPECT_EQ(match(prompt), 2 * bs()) << "those behind it are not";
}

// The pool holds just the longer prompt, one block to grow, one to fork and a state: no second one beside the state
// that matches.
TEST_P(CacheStateTest, GoesOnInTheCachedOneWithoutRoomForAnother) {
  if (n_groups() > 1) return;
  open(6);
  const Tokens prompt = words(100, 3 * bs() + 1);
  const Tokens longer = prompt + words(500, 5 * bs() - 1);
  ASSERT_EQ(rig().cache().blocks_needed(8 * bs(), 1), stats().total);
  rig().finish(compute(prompt));
  const SeqId seq = start(longer);
  EXPECT_EQ(lengths(seq).cached_len, 3 * bs() + 1);
  EXPECT_EQ(rig().met()[static_cast<std::size_t>(Transition::kStateTaken)], 1);
  const Tokens taken = pages(seq);
  feed(seq, words(500, 1));
  EXPECT_EQ(pages(seq), taken);
  EXPECT_LT(match(prompt), 3 * bs() + 1) << "nobody else finds it any more";
}

TEST_P(CacheStateTest, SamplesReadOneAndWriteTheirOwn) {
  open(60);
  const SeqId first = compute(words(100, bs() + 3), 3);
  const Tokens prompts = pages(first);
  const SeqId second = rig().fork(first), third = rig().fork(first);
  EXPECT_EQ(stats().states_in_use, 1);
  for (const SeqId seq : {first, second, third}) EXPECT_TRUE(rig().extend(seq, words(500, 1)));
  EXPECT_EQ(stats().states_in_use, 4) << "the prompt's is still read";
  rig().run_step();
  EXPECT_EQ(stats().states_in_use, 3);
  for (const SeqId seq : {first, second, third}) EXPECT_NE(pages(seq), prompts);
}

// Where the pool holds fewer than 64 states, they are kept further apart.
TEST(CacheStateConfigTest, TheStrideFollowsFromTheBudget) {
  kv::CacheConfig config{.block_size = 32, .groups = make_groups(Groups::kFullAndRecurrent, 32)};
  config.groups.back().state_pages = 100;
  for (const auto& [units, stride] :
       {std::pair{1000, 1024}, {64, 1024}, {32, 2048}, {10, 6560}, {1, 65536}, {0, 65536}}) {
    config.num_blocks = 1 + 100 * units + 50;
    EXPECT_EQ(kv::checked(config).state_stride, stride) << units;
  }
  EXPECT_EQ(kv::checked(config).n_groups(), 1);
  config.groups.insert(config.groups.begin() + 1, config.groups.back());
  EXPECT_THROW(kv::checked(config), std::invalid_argument);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheStateTest,
                         testing::ValuesIn(shapes({Groups::kFullAndRecurrent, Groups::kAllKinds})), shape_name);

}  // namespace
}  // namespace coppice::test
