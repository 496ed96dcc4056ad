// The radix tree: what a match finds, what publishing makes of the tree, and who shares with whom.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

class CacheMatchTest : public KvTest {};

TEST_P(CacheMatchTest, AnEmptyCacheKnowsNothing) {
  open(8);
  EXPECT_EQ(rig().match(words(100, 40)), 0);
  EXPECT_EQ(stats().tree_nodes, 0);
}

TEST_P(CacheMatchTest, AMatchIsCappedAtPromptLengthMinusOne) {
  open(16);
  const Tokens prompt = words(100, 3 * bs());
  serve(prompt);
  EXPECT_EQ(rig().match(prompt), 3 * bs());
  const SeqId seq = start(prompt);
  EXPECT_EQ(lengths(seq).cached_len, 3 * bs() - 1) << "the last token's logits are needed";
  feed(seq, {prompt.back()});
  EXPECT_EQ(stats().shared, 0);
  const SeqId one = start({100});
  EXPECT_EQ(lengths(one).cached_len, 0);
}

TEST_P(CacheMatchTest, ABlockCanBeFoundAsSoonAsItIsFull) {
  open(16);
  const Tokens prompt = words(100, 3 * bs());
  const SeqId leader = start(prompt);
  feed(leader, words(100, bs() - 1));
  EXPECT_EQ(rig().match(prompt), 0) << "a block still being filled is its sequence's alone";
  feed(leader, words(100 + bs() - 1, 1));
  EXPECT_EQ(rig().match(prompt), bs());
  const SeqId follower = start(prompt);  // while the leader runs
  EXPECT_EQ(lengths(follower).cached_len, bs());
  EXPECT_EQ(blocks_of(follower), blocks_of(leader));
  EXPECT_EQ(stats().shared, n_groups());
  EXPECT_EQ(stats().max_refs, 2);
}

TEST_P(CacheMatchTest, GeneratedTokensAreIndexed) {
  open(16);
  const SeqId seq = run(words(100, bs() / 2));
  for (int i = 0; i < bs(); ++i) feed(seq, {700 + i});
  EXPECT_EQ(rig().match(words(100, bs() / 2) + words(700, bs())), bs()) << "its first block is full";
  rig().finish(seq);
  EXPECT_EQ(rig().match(words(100, bs() / 2) + words(700, bs())), bs() + bs() / 2);
}

//   root --- |aaaaaaaa| --- |bbbbbbbb| --- |ccc|
// Every prefix of a known text is known, to the token.
TEST_P(CacheMatchTest, EveryPrefixIsKnownToTheToken) {
  open(16);
  const Tokens text = words(100, 2 * bs() + 3);
  serve(text);
  for (int n = 1; n <= 2 * bs() + 3; ++n) {
    EXPECT_EQ(rig().match(words(100, n) + words(900, 4)), n);
  }
}

//              .- |aaaabbbb|
//   root ------+- |aaaacccc|       siblings begin with the same tokens
//              '- |aaaaccdd| - |ee|
TEST_P(CacheMatchTest, SiblingsMayBeginWithTheSameTokens) {
  open(16);
  const int q = bs() / 4;
  const Tokens a = words(100, 2 * q), c = words(300, q);
  serve(a + words(200, 2 * q));
  serve(a + c + words(400, q));
  serve(a + c + words(500, q) + words(600, 2));
  EXPECT_EQ(rig().match(a + words(200, 2 * q) + words(900, 3)), bs());
  EXPECT_EQ(rig().match(a + c + words(400, q)), bs());
  EXPECT_EQ(rig().match(a + c + words(500, q) + words(600, 2)), bs() + 2);
  EXPECT_EQ(rig().match(a + c + words(900, q)), 3 * q) << "inside either of two";
  EXPECT_EQ(rig().match(a + words(900, q)), 2 * q);
}

// Paths are compressed and split at block boundaries only.
//   root --- |a|b|c|d|      =>     root --- |a|b| -+- |c|d|
//                                                  '- |x|
TEST_P(CacheMatchTest, APathSplitsAtABlockBoundary) {
  open(16);
  serve(words(100, 4 * bs()));
  const std::int64_t one_path = stats().tree_nodes;
  serve(words(100, 2 * bs()) + words(900, bs()));
  EXPECT_EQ(stats().tree_nodes, one_path + 2) << rig().cache().dump();
  EXPECT_EQ(rig().match(words(100, 4 * bs())), 4 * bs());
  EXPECT_EQ(rig().match(words(100, 2 * bs()) + words(900, bs())), 3 * bs());
}

//   root --- |aaaaaaaa| --- |bbb.....|     =>     root --- |aaaaaaaa| --- |bbbccccc|
TEST_P(CacheMatchTest, AnExtensionReplacesAPartialLeaf) {
  open(16);
  const Tokens head = words(100, bs() + 3);
  serve(head);
  EXPECT_EQ(stats().cached, 2 * n_groups());
  serve(head + words(500, bs() - 3));
  EXPECT_EQ(stats().cached, 2 * n_groups()) << rig().cache().dump();
  EXPECT_EQ(rig().match(head + words(500, bs() - 3)), 2 * bs());
  EXPECT_EQ(rig().match(head + words(900, 2)), bs() + 3);
}

// A longer partial tail replaces a shorter one; a shorter one adds nothing.
TEST_P(CacheMatchTest, PartialTailsOfOneTextAreHeldOnce) {
  open(16);
  serve(words(100, 3));
  serve(words(100, 6));
  EXPECT_EQ(stats().cached, n_groups());
  serve(words(100, 4));
  EXPECT_EQ(stats().cached, n_groups());
  EXPECT_EQ(rig().match(words(100, 8)), 6);
}

// Two that started together, before anything was published, computed the same blocks.
//   first:  |aaaaaaaa|bbbbbbbb|cc......|    =>   both tables point to the tree's |aaaaaaaa|bbbbbbbb|
//   second: |aaaaaaaa|bbbbbbbb|cc......|
TEST_P(CacheMatchTest, BlocksComputedTwiceAreMergedAtPublish) {
  open(16);
  const Tokens prompt = words(100, 2 * bs() + 2);
  const SeqId first = start(prompt), second = start(prompt);
  ASSERT_TRUE(rig().extend(first, prompt));
  ASSERT_TRUE(rig().extend(second, prompt));
  EXPECT_EQ(stats().in_use, 6 * n_groups());
  rig().run_step();
  EXPECT_EQ(first_blocks_of(first, 2), first_blocks_of(second, 2));
  EXPECT_NE(blocks_of(first)[2], blocks_of(second)[2]);
  EXPECT_EQ(stats().max_refs, 2);
  EXPECT_EQ(stats().in_use + stats().cached, 4 * n_groups()) << "the duplicates are free again";
  EXPECT_EQ(stats().cow_forks, 0);
}

TEST_P(CacheMatchTest, NamespacesNeverShare) {
  open(24);
  const Tokens text = words(100, bs() + 4);
  const kv::Namespace tenant{.salt = "tenant"}, other{.salt = "other"}, lora{.adapter = "tenant"};
  serve(text, tenant);
  EXPECT_EQ(rig().match(text, tenant), bs() + 4);
  EXPECT_EQ(rig().match(text, other), 0);
  EXPECT_EQ(rig().match(text, lora), 0) << "a salt is not an adapter";
  EXPECT_EQ(rig().match(text), 0);
  serve(text, lora);
  EXPECT_EQ(stats().cached, 4 * n_groups());
  EXPECT_EQ(rig().match(text, lora), bs() + 4);
}

// A match compares tokens. Digests are made when a block is published: one a block, and one for the namespace.
TEST_P(CacheMatchTest, MatchingNeverHashes) {
  int hashed = 0;
  kv::CacheConfig config = make_config(GetParam(), 16);
  config.hash = [&, inner = config.hash](std::span<const std::byte> bytes) {
    ++hashed;
    return inner(bytes);
  };
  KvRig rig(config);
  const Tokens prompt = words(100, 3 * bs() + 2);
  const auto seq = rig.admit(prompt);
  ASSERT_TRUE(seq) << rig.failure();
  ASSERT_TRUE(rig.extend(*seq, prompt));
  rig.run_step();
  EXPECT_GE(hashed, 3) << "three full blocks were published";
  EXPECT_LE(hashed, 4);

  hashed = 0;
  EXPECT_EQ(rig.match(prompt), 3 * bs());
  ASSERT_TRUE(rig.admit(prompt)) << rig.failure();
  EXPECT_EQ(rig.match(words(500, 10)), 0);
  rig.finish(*seq);
  EXPECT_EQ(hashed, 0) << "a partial block has no identity yet";
  EXPECT_EQ(rig.failure(), "");
}

// Media symbols are negative tokens: they share with their equals only.
TEST_P(CacheMatchTest, WithoutSharingNothingIsKept) {
  open(16, true, false);
  const Tokens prompt = words(100, 2 * bs() + 3);
  const SeqId first = run(prompt);
  EXPECT_EQ(rig().match(prompt), 0);
  const SeqId second = run(prompt);
  EXPECT_EQ(lengths(second).cached_len, 0);
  EXPECT_EQ(stats().shared, 0);
  const std::int64_t in_use = stats().in_use;
  rig().finish(first);
  EXPECT_EQ(stats().cached, 0);
  EXPECT_LT(stats().in_use, in_use);
  feed(second, words(700, 4));
  EXPECT_EQ(stats().cow_forks, 0);
}

// Preemption: finish, then admit the same tokens again.
TEST_P(CacheMatchTest, APreemptedSequenceResumesThroughTheTree) {
  open(16);
  const SeqId seq = run(words(100, bs() + 3));
  feed(seq, words(700, 4));
  rig().finish(seq);
  const Tokens so_far = words(100, bs() + 3) + words(700, 4);
  const SeqId again = start(so_far);
  EXPECT_EQ(lengths(again).cached_len, bs() + 6) << "all but the last token";
  EXPECT_EQ(stats().cow_forks, 0);
  prefill(again, so_far);
  feed(again, words(800, 4));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheMatchTest, testing::ValuesIn(all_shapes()), shape_name);

// A system prompt that ends inside a block: every user's next block is a child of one node.
//
//                 .- |sss0....|
//   |ssss|...|ssss+- |sss1....|
//                 '- |sss2....|  ... 10,000 of them
class CacheManyUsersTest : public KvTest {};

TEST_P(CacheManyUsersTest, TenThousandChildrenOfOneNode) {
  constexpr int kUsers = kSanitized ? 1'000 : 10'000;
  open(kUsers + 1500 / bs() + 40, /*verify_each=*/false);
  const Tokens system = words(1, 1500);
  ASSERT_NE(1500 % bs(), 0);
  const auto question = [](int user) { return Tokens{5000 + user % 100, 6000 + user / 100, 7}; };
  for (int user = 0; user < kUsers; ++user) {
    const SeqId seq = start(system + question(user));
    // Users whose number ends alike ask the same first word.
    ASSERT_EQ(lengths(seq).cached_len, user == 0 ? 0 : user < 100 ? 1500 : 1501) << "user " << user;
    Tokens rest = system + question(user);
    rest.erase(rest.begin(), rest.begin() + lengths(seq).cached_len);
    while (!rest.empty()) {
      const auto n = std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(rest.size()), 512);
      ASSERT_TRUE(rig().extend(seq, Tokens(rest.begin(), rest.begin() + n))) << rig().failure();
      rig().run_step();
      rest.erase(rest.begin(), rest.begin() + n);
    }
    rig().finish(seq);
  }
  EXPECT_EQ(stats().evictions, 0);
  for (int user = 0; user < kUsers; ++user) {
    ASSERT_EQ(rig().match(system + question(user) + Tokens{8}), 1503) << "user " << user;
  }
  EXPECT_EQ(rig().match(system + Tokens{5000, 6100, 7}), 1501);
  EXPECT_EQ(rig().match(system + Tokens{4999}), 1500);
  EXPECT_EQ(rig().match(system + Tokens{5100}), 1500);
  EXPECT_EQ(rig().match(words(1, 1499) + Tokens{0}), 1499);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheManyUsersTest,
                         testing::Values(Shape{Groups::kFull, 8}, Shape{Groups::kFull, 16, true},
                                         Shape{Groups::kFull, 32}, Shape{Groups::kFullAndSliding, 16},
                                         Shape{Groups::kFullAndFiveSliding, 32}),
                         shape_name);

}  // namespace
}  // namespace coppice::test
