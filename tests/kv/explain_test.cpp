// Why a match ends where it does.
#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

using kv::MatchEnded;

class ExplainTest : public KvTest {
 protected:
  kv::MatchEnd explain(const Tokens& tokens, const kv::Namespace& ns = {}) {
    const kv::MatchEnd end = rig().cache().explain(tokens, ns);
    EXPECT_EQ(end.length, rig().match(tokens, ns)) << "it explains the match that there is";
    return end;
  }
};

TEST_P(ExplainTest, NothingInThisNamespace) {
  open(16);
  serve(words(100, 3 * bs()));
  const kv::MatchEnd end = explain(words(100, 3 * bs()), {.salt = "other"});
  EXPECT_EQ(end.why, MatchEnded::kNamespace);
  EXPECT_EQ(end.length, 0);
  EXPECT_TRUE(end.found.empty()) << "nothing of another namespace gets out";
}

TEST_P(ExplainTest, AllOfIt) {
  open(16);
  serve(words(100, 3 * bs() + 2));
  EXPECT_EQ(explain(words(100, 3 * bs() + 2)).why, MatchEnded::kLastToken);
  EXPECT_EQ(explain(words(100, 5)).why, MatchEnded::kLastToken);
}

TEST_P(ExplainTest, TheTreeEndsHere) {
  open(16);
  serve(words(100, 3 * bs()));
  const kv::MatchEnd end = explain(words(100, 4 * bs()));
  EXPECT_EQ(end.why, MatchEnded::kUnknown);
  EXPECT_EQ(end.length, 3 * bs());
}

// At every place: inside a block, at its end, at the beginning.
TEST_P(ExplainTest, OtherTokens) {
  open(16);
  const Tokens text = words(100, 3 * bs());
  serve(text);
  serve(words(100, 2 * bs()) + words(700, bs()));
  for (int n = 0; n < 3 * bs(); ++n) {
    if (n == 2 * bs()) continue;  // two branches: below
    const kv::MatchEnd end = explain(words(100, n) + words(900, 4));
    EXPECT_EQ(end.why, MatchEnded::kDiffers) << n;
    EXPECT_EQ(end.length, n);
    ASSERT_FALSE(end.found.empty()) << n;
    EXPECT_EQ(end.found, Tokens(text.begin() + n, text.begin() + n + std::ssize(end.found)));
  }
  const kv::MatchEnd end = explain(words(100, 2 * bs()) + words(900, 4));
  EXPECT_EQ(end.why, MatchEnded::kDiffers);
  EXPECT_TRUE(end.found[0] == 700 || end.found[0] == 100 + 2 * bs());
}

TEST_P(ExplainTest, Evicted) {
  open(8);
  const Tokens text = words(100, 4 * bs());
  serve(text);
  for (int i = 1; i <= 3; ++i) serve(words(1000 * i, 5 * bs()));
  const kv::MatchEnd end = explain(text);
  EXPECT_EQ(end.why, MatchEnded::kEvicted) << rig().cache().dump();
  EXPECT_LT(end.length, 4 * bs());
  EXPECT_EQ(end.length + end.evicted, 4 * bs());
}

// Eviction begins at the end of a text, and not with one of the blocks that are remembered for long.
TEST_P(ExplainTest, TheLastBlocksEvictedALittleAgo) {
  open(24);
  const Tokens text = words(100, 4 * bs());
  serve(text);
  int i = 1;
  while (rig().match(text) == 4 * bs()) serve(words(1000 * i++, 2 * bs()));
  const kv::MatchEnd end = explain(text);
  if (GetParam().groups == Groups::kFull) ASSERT_GT(end.length, 0) << "only its end is gone";
  EXPECT_EQ(end.why, MatchEnded::kEvicted) << rig().cache().dump();
  EXPECT_EQ(end.length + end.evicted, 4 * bs());
}

// Its root goes with the namespace's last block.
TEST_P(ExplainTest, AWholeNamespaceEvicted) {
  open(8);
  const Tokens text = words(100, 2 * bs());
  serve(text, {.salt = "a"});
  for (int i = 1; i <= 3; ++i) serve(words(1000 * i, 5 * bs()), {.salt = "b"});
  const kv::MatchEnd end = explain(text, {.salt = "a"});
  EXPECT_EQ(end.why, MatchEnded::kEvicted) << rig().cache().dump();
  EXPECT_EQ(end.length + end.evicted, 2 * bs());
  EXPECT_EQ(explain(text, {.salt = "c"}).why, MatchEnded::kNamespace) << "only its own past";
}

std::vector<Shape> told_apart() {
  std::vector<Shape> shapes;
  for (const Shape& shape : all_shapes()) {
    if (!shape.constant_hash) shapes.push_back(shape);  // evicted blocks are remembered by digest
  }
  return shapes;
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExplainTest, testing::ValuesIn(told_apart()), shape_name);

}  // namespace
}  // namespace coppice::test
