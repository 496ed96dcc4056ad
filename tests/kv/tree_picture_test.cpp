// Pictures of the tree: what they show, what they leave out, and that they say so.
#include <algorithm>
#include <random>
#include <set>

#include "support/kv_fixture.h"

namespace coppice::test {
namespace {

constexpr kv::PictureLimits kAll{.nodes = 10'000, .depth = 10'000, .head_tokens = 10'000};

class TreePictureTest : public KvTest {
 protected:
  kv::TreePicture picture(const kv::PictureLimits& limits = kAll, const kv::Namespace& ns = {}) {
    return rig().cache().picture(ns, limits);
  }
  /// `n` blocks of tokens.
  Tokens text(kv::Token from, int n) { return words(from, n * bs()); }
};

/// The tokens from the root to a node's end.
Tokens path(const kv::TreePicture& picture, std::int32_t i) {
  if (i < 0) return {};
  const kv::PictureNode& node = picture.nodes[static_cast<std::size_t>(i)];
  return path(picture, node.parent) + node.head.view().tokens();
}

TEST_P(TreePictureTest, AnEmptyTreeIsAnEmptyPicture) {
  open(8);
  EXPECT_TRUE(picture().nodes.empty());
  EXPECT_EQ(picture().left_out, 0);
}

TEST_P(TreePictureTest, ShowsStemAndBranches) {
  open(32);
  const Tokens stem = text(100, 2);
  serve(stem + text(500, 1));
  const SeqId a = run(stem + text(600, 2));
  const SeqId b = run(stem + text(600, 2) + text(700, 1));
  const kv::TreePicture all = picture();
  ASSERT_EQ(all.nodes.size(), 3U) << rig().cache().dump();
  const kv::PictureNode &first = all.nodes[0], &left = all.nodes[1], &right = all.nodes[2];
  EXPECT_EQ(first.parent, -1);
  EXPECT_EQ(first.head, stem);
  EXPECT_EQ(first.begin, 0);
  EXPECT_EQ(first.tokens, 2 * bs());
  EXPECT_EQ(first.holders, 2);
  EXPECT_EQ(first.hits, 2U);
  EXPECT_EQ(left.parent, 0);
  EXPECT_EQ(left.begin, 2 * bs());
  EXPECT_EQ(left.head, text(500, 1));
  EXPECT_EQ(left.holders, 0);
  EXPECT_EQ(left.hits, 0U + 1U) << "it was split off a node that was hit once";
  EXPECT_EQ(right.head, text(600, 2) + text(700, 1));
  EXPECT_EQ(right.holders, 2) << "of its first block";
  EXPECT_EQ(first.stored + left.stored + right.stored, 0);
  rig().cache().set_stored(std::span(rig().cache().table(a, 0).blocks).first(3), true);
  const std::vector<kv::PictureNode> after = picture().nodes;
  EXPECT_EQ(after[0].stored, 2 * bs());
  EXPECT_EQ(after[1].stored, 0);
  EXPECT_EQ(after[2].stored, bs()) << "of two blocks one";
  EXPECT_EQ(rig().cache().stands_on(a), right.serial);
  EXPECT_EQ(rig().cache().stands_on(b), right.serial);
  EXPECT_GE(stats().spared, 4) << "of the full group";
  rig().finish(a);
  rig().finish(b);
  EXPECT_EQ(stats().spared, 0);
}

TEST_P(TreePictureTest, ASplitNodesFirstPartIsStillTheNode) {
  open(32);
  serve(text(100, 4));
  const auto before = picture().nodes.at(0).serial;
  serve(text(100, 2) + text(900, 2));
  const kv::TreePicture after = picture();
  ASSERT_EQ(after.nodes.size(), 3U);
  EXPECT_EQ(after.nodes[0].serial, before);
  EXPECT_EQ(after.nodes[0].tokens, 2 * bs());
  EXPECT_NE(after.nodes[1].serial, after.nodes[2].serial);
}

TEST_P(TreePictureTest, SaysWhereSiblingsDiffer) {
  open(32);
  const Tokens stem = text(100, 1) + words(7, 3);
  for (const int from : {500, 600}) serve(stem + words(from, 2 * bs()));
  serve(text(100, 1) + words(7, 2) + words(900, 2 * bs()));
  const kv::TreePicture all = picture({.nodes = 9, .depth = 9, .head_tokens = 2});
  ASSERT_EQ(all.nodes.size(), 4U) << rig().cache().dump();
  EXPECT_EQ(all.nodes[0].common, 0);
  EXPECT_EQ(all.nodes[0].head.size(), 2U);
  EXPECT_EQ(all.nodes[1].common, 3);
  EXPECT_EQ(all.nodes[1].head, words(7, 3) + words(500, 2));
  EXPECT_EQ(all.nodes[2].common, 3);
  EXPECT_EQ(all.nodes[3].common, 2);
  EXPECT_EQ(all.nodes[3].head, words(7, 2) + words(900, 2));
}

TEST_P(TreePictureTest, SaysWhatItLeavesOut) {
  open(64);
  const Tokens stem = text(100, 1);
  for (int i = 0; i < 6; ++i) serve(stem + text(1000 * (i + 1), 1));
  for (int i = 0; i < 3; ++i) serve(text(20'000 + 1000 * i, 1));
  const kv::TreePicture few = picture({.nodes = 3, .depth = 9, .head_tokens = 2});
  ASSERT_EQ(few.nodes.size(), 3U);
  const kv::TreePicture low = picture({.nodes = 100, .depth = 1, .head_tokens = 2});
  EXPECT_EQ(low.nodes.size(), 4U);
  EXPECT_EQ(low.left_out, 0);
  int behind = 0;
  for (const kv::PictureNode& node : low.nodes) {
    behind += node.left_out;
    EXPECT_EQ(node.head.size(), 2U);
  }
  EXPECT_EQ(behind, 6);
  int left_out = few.left_out;
  for (const kv::PictureNode& node : few.nodes) left_out += node.left_out;
  const bool stem_shown = std::ranges::any_of(few.nodes, [&](const auto& node) { return node.head[0] == 100; });
  EXPECT_EQ(left_out, stem_shown ? 4 + 6 - 3 : 4 - 3);
}

TEST_P(TreePictureTest, ShowsTheLiveliestFirst) {
  open(64);
  for (int i = 0; i < 5; ++i) {
    rig().cache().set_time(i);
    serve(text(1000 * (i + 1), 1));
  }
  rig().cache().set_time(9);
  serve(text(2000, 1) + words(7, 1));  // the second is used again
  rig().cache().set_time(10);
  const SeqId held = run(text(1000, 1) + words(7, 1));
  rig().cache().set_time(11);
  serve(text(9000, 1));
  const auto firsts = [&](int n) {
    std::set<kv::Token> tokens;
    for (const auto& node : picture({.nodes = n, .depth = 1, .head_tokens = 1}).nodes)
      tokens.insert(node.head[0].token().value());
    return tokens;
  };
  EXPECT_EQ(firsts(1), (std::set<kv::Token>{1000}));
  EXPECT_EQ(firsts(2), (std::set<kv::Token>{1000, 9000}));
  EXPECT_EQ(firsts(3), (std::set<kv::Token>{1000, 9000, 2000}));
  EXPECT_EQ(firsts(4), (std::set<kv::Token>{1000, 9000, 2000, 5000}));
  for (const auto& node : picture().nodes) {
    if (node.head[0] == 2000) EXPECT_EQ(node.last_used, 9.0);
  }
  rig().finish(held);
}

TEST_P(TreePictureTest, ShowsOneNamespace) {
  open(32);
  serve(text(100, 1), {.salt = "a"});
  serve(text(200, 1), {.salt = "ab"});
  EXPECT_TRUE(picture().nodes.empty());
  ASSERT_EQ(picture(kAll, {.salt = "a"}).nodes.size(), 1U);
  EXPECT_EQ(picture(kAll, {.salt = "a"}).nodes[0].head, text(100, 1));
}

/// Whatever was served and not evicted is a path, and every path was served.
TEST_P(TreePictureTest, ShowsEveryTextAndNothingElse) {
  open(400);
  std::mt19937 random(7);
  std::vector<Tokens> texts;
  for (int i = 0; i < 60; ++i) {
    Tokens next = texts.empty() || random() % 4 == 0 ? Tokens{} : texts[random() % texts.size()];
    next.resize(next.size() - (next.empty() ? 0 : random() % next.size()));
    for (int n = 1 + static_cast<int>(random() % 20); n > 0; --n) next.push_back(static_cast<kv::Token>(random() % 3));
    if (next.size() > 60) next.resize(60);
    texts.push_back(next);
    serve(next);
  }
  ASSERT_EQ(stats().evictions, 0);
  const kv::TreePicture all = picture();
  const auto begins = [](const Tokens& whole, const Tokens& part) {
    return whole.size() >= part.size() && std::equal(part.begin(), part.end(), whole.begin());
  };
  std::vector<Tokens> paths;
  for (std::size_t i = 0; i < all.nodes.size(); ++i) {
    ASSERT_LT(all.nodes[i].parent, static_cast<std::int32_t>(i));
    EXPECT_EQ(all.nodes[i].left_out, 0);
    paths.push_back(path(all, static_cast<std::int32_t>(i)));
    EXPECT_EQ(paths.back().size(), static_cast<std::size_t>(all.nodes[i].begin + all.nodes[i].tokens));
    EXPECT_TRUE(std::ranges::any_of(texts, [&](const Tokens& t) { return begins(t, paths.back()); }));
  }
  for (const Tokens& served : texts)
    EXPECT_TRUE(std::ranges::any_of(paths, [&](const Tokens& p) { return begins(p, served); })) << rig().cache().dump();
}

INSTANTIATE_TEST_SUITE_P(Shapes, TreePictureTest, testing::ValuesIn(all_shapes()), shape_name);

}  // namespace
}  // namespace coppice::test
