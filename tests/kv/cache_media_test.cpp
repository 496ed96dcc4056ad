// Media in the cache: pictures are stretches of the tree, matched by their whole digests, and whole where they can't be
// cut.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

class CacheMediaTest : public KvTest {
 protected:
  // Pairs have the same symbols, and other digests.
  Tokens whole() { return words_of({.which = 0, .rows = bs() + 5, .whole = true}); }
  Tokens twin() { return words_of({.which = 1, .rows = bs() + 5, .whole = true}); }
  Tokens causal() { return words_of({.which = 2, .rows = bs() + 5}); }
  Tokens causal_twin() { return words_of({.which = 3, .rows = bs() + 5}); }
  std::int32_t rows() { return bs() + 5; }
};

TEST_P(CacheMediaTest, APictureIsFoundAsTextIs) {
  open(32);
  for (const Tokens& picture : {whole(), causal()}) {
    serve(words(100, 3) + picture + words(200, bs()));
    EXPECT_EQ(rig().match(words(100, 3) + picture + words(900, 3)), 3 + rows());
    EXPECT_EQ(rig().match(words(100, 3) + picture + words(200, 5)), 3 + rows() + 5);
    EXPECT_EQ(rig().match(words(100, 3) + words(1, rows())), 3) << "a token is no piece of a picture";
  }
}

TEST_P(CacheMediaTest, EqualSymbolsAreNoMatch) {
  open(32);
  EXPECT_TRUE(std::ranges::equal(to_kv(whole()).view().bits(), to_kv(twin()).view().bits()));
  serve(words(100, 3) + whole() + words(200, bs()));
  serve(words(100, 3) + causal() + words(200, bs()));
  EXPECT_EQ(rig().match(words(100, 3) + twin() + words(200, bs())), 3);
  EXPECT_EQ(rig().match(words(100, 3) + causal_twin() + words(200, bs())), 3);
  // Both are in the tree, as siblings in which no token differs.
  serve(words(100, 3) + twin() + words(200, bs()));
  serve(words(100, 3) + causal_twin() + words(200, bs()));
  for (const Tokens& picture : {whole(), twin(), causal(), causal_twin()})
    EXPECT_EQ(rig().match(words(100, 3) + picture + words(200, bs())), 3 + rows() + bs());
}

TEST_P(CacheMediaTest, PicturesAtBlockBordersAreToldApart) {
  open(48);
  const Tokens first = words(100, bs());
  for (const Tokens& picture : {whole(), twin()}) {
    serve(first + picture + words(200, bs()));
    EXPECT_EQ(rig().match(first + picture + words(200, bs())), 2 * bs() + rows());
  }
  // The same picture twice in a row is two, whose rows are counted anew.
  serve(first + causal() + causal() + words(200, 3));
  EXPECT_EQ(rig().match(first + causal() + causal()), bs() + 2 * rows());
  EXPECT_EQ(rig().match(first + causal() + causal_twin()), bs() + rows());
}

TEST_P(CacheMediaTest, APictureThatCantBeCutMatchesWholeOrNotAtAll) {
  open(32);
  const Tokens head = words(100, 3), all = head + whole() + words(200, 2 * bs());
  serve(all);
  for (int n = 1; n <= static_cast<int>(all.size()); ++n) {
    const bool inside = n > 3 && n < 3 + rows();
    EXPECT_EQ(rig().match(Tokens(all.begin(), all.begin() + n)), inside ? 3 : n);
  }
  const Tokens free = words(300, 3) + causal() + words(200, 2 * bs());
  serve(free);
  for (int n = 1; n <= static_cast<int>(free.size()); ++n)
    EXPECT_EQ(rig().match(Tokens(free.begin(), free.begin() + n)), n) << "of others any piece may match";
}

// The last token's logits are wanted, and they need all of the picture.
TEST_P(CacheMediaTest, APromptThatEndsInOneComputesItAgain) {
  open(32);
  const Tokens prompt = words(100, 3) + whole();
  serve(prompt);
  EXPECT_EQ(rig().match(prompt), 3 + rows());
  const SeqId again = start(prompt);
  EXPECT_EQ(lengths(again).cached_len, 3);
  feed(again, whole());
  expect_contiguous(again);
}

TEST_P(CacheMediaTest, WithoutItsEndTheBeginningIsOfNoUse) {
  open(32);
  if (n_groups() > 1) return;  // windows leave the other text room
  const Tokens head = words(100, bs() - 3), prompt = head + whole() + words(200, 1);
  serve(prompt);
  // Another text takes all blocks but the first ones: those in the picture's middle go.
  const SeqId other = start(words(5000, 30 * bs()));
  for (int at = 0; at < 30 * bs(); at += bs()) feed(other, words(5000 + at, bs()));
  const std::int32_t left = rig().match(prompt);
  EXPECT_TRUE(left <= bs() - 3) << left;
  rig().finish(other);
  serve(prompt);
  EXPECT_EQ(rig().match(prompt), static_cast<int>(prompt.size()));
}

TEST_P(CacheMediaTest, APinEndsBeforeAPictureOfWhichItHasAPart) {
  open(48);
  const Tokens prompt = words(100, bs() + 3) + whole() + words(200, 2 * bs());
  serve(prompt);
  const Tokens part(prompt.begin(), prompt.begin() + 2 * bs() + 2);
  const auto pinned = rig().pin({.prefix = part});
  ASSERT_TRUE(pinned.has_value());
  EXPECT_EQ(pinned->tokens, bs());
  const auto all = rig().pin({.prefix = prompt});
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->tokens, static_cast<int>(prompt.size()) / bs() * bs());
}

// Inside a block: others can begin behind the picture although its last block is not full.
TEST_P(CacheMediaTest, ATailThatOthersWaitForIsShared) {
  open(48);
  const Tokens head = words(100, 4) + whole();
  const SeqId leader = start(head + words(200, 2));
  rig().share_tail(leader, 4 + rows());
  EXPECT_EQ(rig().cache().next_stop(leader), 4 + rows());
  feed(leader, head);
  EXPECT_EQ(rig().match(head + words(900, 2)), 4 + rows());
  const SeqId follower = start(head + words(900, 2));
  EXPECT_EQ(lengths(follower).cached_len, 4 + rows());
  feed(leader, words(200, 2));
  feed(follower, words(900, 2));
  EXPECT_GE(stats().cow_forks, 2 * n_groups()) << "each has a tail of its own";
  expect_contiguous(leader);
  expect_contiguous(follower);
}

TEST_P(CacheMediaTest, ATailIsNotSharedWhereNobodyWaits) {
  open(48);
  const Tokens head = words(100, 4) + whole();
  const SeqId leader = start(head + words(200, 2));
  feed(leader, head);
  EXPECT_EQ(rig().match(head + words(900, 2)), 4);
  feed(leader, words(200, 2));
  EXPECT_EQ(stats().cow_forks, 0);
}

TEST_P(CacheMediaTest, WhoIsCutIsToldSo) {
  open(48);
  serve(words(100, 3) + whole() + words(200, bs()));
  const auto explain = [&](const Tokens& words) { return rig().cache().explain(to_kv(words), {}); };
  const kv::MatchEnd other = explain(words(100, 3) + twin() + words(200, bs()));
  EXPECT_EQ(other.length, 3);
  EXPECT_EQ(other.why, kv::MatchEnded::kDiffers);
  ASSERT_EQ(other.found.spans().size(), 1U);
  EXPECT_EQ(other.found.spans()[0].medium, to_kv({.which = 0, .rows = rows(), .whole = true}));
}

INSTANTIATE_TEST_SUITE_P(Shapes, CacheMediaTest, testing::ValuesIn(shapes({Groups::kFull, Groups::kFullAndChunked})),
                         shape_name);

}  // namespace
}  // namespace coppice::test
