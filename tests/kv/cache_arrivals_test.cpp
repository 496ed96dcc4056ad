// Tokens that come from outside of the pool: they take blocks like computed ones, and give back what doesn't come.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "kv/cache.h"
#include "support/kv_fixture.h"
#include "support/kv_shapes.h"

namespace coppice::test {
namespace {

/// No bytes: what the executor would load, a test here only says.
class ArrivalsTest : public testing::TestWithParam<Shape> {
 protected:
  int bs() const { return GetParam().block_size; }
  kv::CacheConfig config() const { return make_config(GetParam(), 40); }
  std::string integrity() { return cache_.check_integrity(); }

  SeqId start(const Tokens& prompt) { return cache_.admit({.prompt = prompt}).value(); }
  void compute(SeqId seq, const Tokens& prompt) {
    std::vector<kv::BlockOp> ops;
    while (cache_.lengths(seq).len < std::ssize(prompt)) {
      const auto at = cache_.lengths(seq).len;
      const auto stop =
          std::min({cache_.next_stop(seq), static_cast<std::int32_t>(prompt.size()), at + cache_.config().max_extend});
      ASSERT_TRUE(cache_.extend(seq, stop - at, ops));
      cache_.publish(seq,
                     kv::TextView(prompt).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(stop - at)));
      EXPECT_EQ(integrity(), "");
    }
  }
  void arrive(SeqId seq, const Tokens& prompt, int from, int n) {
    cache_.arrived(seq, kv::TextView(prompt).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(n)));
    EXPECT_EQ(integrity(), "");
  }
  bool holds_everything() const { return cache_.config().n_groups() == 1 && cache_.config().state_pages == 0; }

  kv::Cache cache_{config()};
};

std::vector<Shape> shapes_with_states() {
  std::vector<Shape> all = all_shapes();
  for (const Shape& shape : shapes({Groups::kFullAndRecurrent, Groups::kAllKinds})) all.push_back(shape);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Shapes, ArrivalsTest, testing::ValuesIn(shapes_with_states()), shape_name);

TEST_P(ArrivalsTest, WhatHasComeIsFoundLikeWhatIsComputed) {
  const Tokens prompt = words(100, 7 * bs() + 3);
  const SeqId seq = start(prompt);
  ASSERT_TRUE(cache_.await(seq, 7 * bs()));
  EXPECT_EQ(integrity(), "");
  EXPECT_EQ(cache_.match(prompt, {}), 0);
  arrive(seq, prompt, 0, 7 * bs());
  EXPECT_EQ(cache_.lengths(seq).computed_len, 7 * bs());
  EXPECT_EQ(cache_.match(prompt, {}), 7 * bs());
  compute(seq, prompt);
  cache_.finish(seq);
  EXPECT_EQ(integrity(), "");
  EXPECT_EQ(cache_.match(prompt, {}), static_cast<std::int32_t>(prompt.size()));
  EXPECT_EQ(cache_.stats().in_use, 0);
}

TEST_P(ArrivalsTest, OnlyWhatAWindowSeesTakesBlocks) {
  const Tokens prompt = words(100, 20 * bs());
  const SeqId seq = start(prompt);
  ASSERT_TRUE(cache_.await(seq, 19 * bs()));
  for (int g = 0; g < cache_.config().n_groups(); ++g) {
    const auto blocks = cache_.table(seq, g).blocks;
    for (std::int32_t b = 0; b < 19; ++b)
      EXPECT_EQ(blocks[static_cast<std::size_t>(b)] != kv::kNullBlock,
                b >= cache_.config().first_needed_block(g, 19 * bs()));
  }
  arrive(seq, prompt, 0, 19 * bs());
  compute(seq, prompt);
}

TEST_P(ArrivalsTest, WhatDoesNotComeIsGivenBack) {
  const Tokens first = words(100, 3 * bs()), prompt = first + words(500, 8 * bs());
  const SeqId before = start(first);
  compute(before, first);
  cache_.finish(before);
  const auto held = cache_.stats();
  const SeqId seq =
      cache_.admit({.prompt = prompt, .ns = {}, .most_cached = 3 * static_cast<std::size_t>(bs())}).value();
  const auto at = cache_.lengths(seq).computed_len;
  const auto reserved = cache_.reserved(seq);
  ASSERT_EQ(at, 3 * bs());
  ASSERT_TRUE(cache_.await(seq, 10 * bs()));
  EXPECT_EQ(integrity(), "");
  cache_.rewind(seq, at);
  EXPECT_EQ(integrity(), "");
  EXPECT_EQ(cache_.reserved(seq), reserved);
  compute(seq, prompt);
  cache_.finish(seq);
  EXPECT_EQ(cache_.stats().in_use, held.in_use);
}

TEST_P(ArrivalsTest, APartMayComeWhereNothingIsForgotten) {
  if (!holds_everything()) GTEST_SKIP() << "windows and states come together or not at all";
  const Tokens prompt = words(100, 9 * bs());
  const SeqId seq = start(prompt);
  ASSERT_TRUE(cache_.await(seq, 8 * bs()));
  arrive(seq, prompt, 0, 3 * bs());
  EXPECT_EQ(cache_.match(prompt, {}), 3 * bs());
  arrive(seq, prompt, 3 * bs(), bs());
  cache_.rewind(seq, 4 * bs());
  EXPECT_EQ(integrity(), "");
  compute(seq, prompt);
}

TEST_P(ArrivalsTest, AnEndMeanwhileLeavesNothing) {
  const Tokens prompt = words(100, 9 * bs());
  for (const bool keep : {false, true}) {
    const SeqId seq = start(prompt);
    ASSERT_TRUE(cache_.await(seq, 8 * bs()));
    keep ? cache_.finish(seq) : cache_.abandon(seq);
    EXPECT_EQ(integrity(), "");
    EXPECT_EQ(cache_.stats().free, cache_.stats().total);
    EXPECT_EQ(cache_.stats().reserved, 0);
  }
}

TEST_P(ArrivalsTest, WhatIsComputedMeanwhileIsMerged) {
  const Tokens prompt = words(100, 9 * bs());
  const SeqId seq = start(prompt), other = start(prompt);
  ASSERT_TRUE(cache_.await(seq, 8 * bs()));
  compute(other, prompt);
  arrive(seq, prompt, 0, 8 * bs());
  EXPECT_EQ(cache_.table(seq, 0).blocks[7], cache_.table(other, 0).blocks[7]);
  cache_.finish(other);
  compute(seq, prompt);
  cache_.finish(seq);
  EXPECT_EQ(integrity(), "");
}

TEST_P(ArrivalsTest, TooFewBlocksChangeNothing) {
  const Tokens prompt = words(100, 9 * bs());
  const SeqId seq = start(prompt);
  std::vector<SeqId> others;
  for (int i = 0;; ++i) {  // until the pool is promised
    const auto more = cache_.admit({.prompt = words(1000 * (i + 1), 2 * bs())});
    if (!more) break;
    others.push_back(*more);
  }
  const auto before = cache_.stats();
  if (cache_.await(seq, 8 * bs())) cache_.rewind(seq, 0);  // it has promises of its own
  EXPECT_FALSE(cache_.await(seq, 400 * bs()));
  EXPECT_EQ(integrity(), "");
  EXPECT_EQ(cache_.stats().free, before.free);
}

TEST_P(ArrivalsTest, WhatCanBeStoredIsToldOnceAndBeforeItGoes) {
  const Tokens prompt = words(100, 6 * bs());
  const SeqId seq = start(prompt);
  cache_.keep_state(seq, 6 * bs());
  compute(seq, prompt);
  cache_.finish(seq);
  const kv::Storables& storables = cache_.storables();
  const std::vector<kv::BlockId> hottest = storables.hottest(1);
  ASSERT_EQ(hottest.size(), 6U);
  std::set<kv::Digest> digests;
  std::map<int, int> of_group;
  for (const kv::BlockId id : hottest) {
    storables.at(id, true, [&](const kv::Storable& one) {
      ++of_group[one.group];
      if (one.group == 0) digests.insert(one.digest);
      EXPECT_EQ(one.text.size(), static_cast<std::size_t>(bs()));
      cache_.set_stored(one.pages, true);
      EXPECT_TRUE(cache_.stored(one.pages.back()));
    });
  }
  EXPECT_EQ(of_group[0], 6);
  if (!GetParam().constant_hash) EXPECT_EQ(digests.size(), 6U);
  if (cache_.config().state_pages > 0) EXPECT_GE(of_group[cache_.config().n_groups()], 1);
  EXPECT_TRUE(storables.hottest(1).empty());
  EXPECT_TRUE(storables.hottest(2).empty());

  // Evicted, computed again: it has no mark any more, and is told of when it goes.
  cache_.clear();
  const SeqId again = start(prompt);
  compute(again, prompt);
  cache_.finish(again);
  EXPECT_EQ(storables.hottest(1).size(), 6U);
  int told = 0;
  cache_.on_eviction([&](const kv::Storable& one) { told += one.group == 0 ? 1 : 0; });
  for (int i = 0; !cache_.whole_blocks(prompt, {}).empty() && i < 100; ++i) {
    const Tokens other = words(1000 * (i + 1), 8 * bs());
    const SeqId next = start(other);
    compute(next, other);
    cache_.finish(next);
  }
  EXPECT_GE(told, 6);
}

}  // namespace
}  // namespace coppice::test
