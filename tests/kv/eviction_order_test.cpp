// The rule by which blocks go: rank, what is remembered of evicted blocks, and what both do to a cache.
#include "kv/eviction_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/kv_fixture.h"

namespace coppice::kv {
namespace {

Digest digest_of(int n) {
  return sha256(std::as_bytes(std::span(&n, 1)));
}

/// Blocks of one full group, each a text of its own.
class EvictionOrderTest : public testing::Test {
 protected:
  void enter(BlockId id) {
    const BlockId row[] = {id};
    order_.enter(row, nullptr);
    order_.add(id, 0, Heat::kHot);
  }
  /// A request uses the block and ends.
  void use(BlockId id) {
    order_.remove(id);
    order_.use(id, /*came_back=*/true);
    order_.add(id, 0, Heat::kHot);
  }
  void let_pass(int blocks) {
    const BlockId row[] = {kPassing};
    for (int i = 0; i < blocks; ++i) order_.enter(row, nullptr);
  }
  BlockId take_next() {
    const BlockId id = order_.next();
    order_.remove(id);
    return id;
  }

  static constexpr BlockId kPassing = 99;
  EvictionOrder order_{100, 1};
};

TEST_F(EvictionOrderTest, AmongBlocksUsedOnceTheOldestGoes) {
  for (const BlockId id : {3, 1, 2}) enter(id);
  for (const BlockId id : {3, 1, 2}) EXPECT_EQ(take_next(), id);
  EXPECT_EQ(order_.next(), kNullBlock);
}

// Block 1 came back after about 20 blocks: it counts as 20 younger than its last use.
TEST_F(EvictionOrderTest, AUseBeforeTheLastIsWorthOneDistance) {
  enter(1);
  let_pass(19);
  use(1);
  let_pass(9);
  enter(2);
  EXPECT_EQ(order_.next(), 2) << "10 younger by time, 20 older by uses";
  order_.remove(2);
  let_pass(12);
  enter(3);
  EXPECT_EQ(order_.next(), 1) << "more than a distance later";
}

TEST_F(EvictionOrderTest, UsesCountNoFurtherThanTheirMost) {
  enter(1);
  let_pass(10);
  for (int i = 0; i < 50; ++i) use(1);
  EXPECT_EQ(order_.uses(1), EvictionOrder::kMostUses);
  let_pass(10 * static_cast<int>(EvictionOrder::kMostUses));
  enter(2);
  EXPECT_EQ(order_.next(), 1) << "a favourite of the past goes too";
}

TEST_F(EvictionOrderTest, ABlockThatIsComputedAgainIsNotNew) {
  const Digest known = digest_of(1), unknown = digest_of(2);
  const BlockId row[] = {1};
  EXPECT_EQ(order_.enter(row, &known), 1U);
  order_.remember(1, known, true);
  EXPECT_EQ(order_.enter(row, &known), 2U);
  EXPECT_EQ(order_.enter(row, nullptr), 1U) << "a block that isn't full has no identity";
  EXPECT_EQ(order_.enter(row, &unknown), 1U);
}

TEST_F(EvictionOrderTest, WhatStandsOnABlockRaisesIt) {
  const BlockId row[] = {1};
  order_.enter(row, nullptr);
  EXPECT_TRUE(order_.raise(1, 3));
  EXPECT_EQ(order_.uses(1), 3U);
  EXPECT_FALSE(order_.raise(1, 2));
  EXPECT_EQ(order_.uses(1), 3U);
}

TEST_F(EvictionOrderTest, WhatLeftEveryWindowGoesFirst) {
  EvictionOrder order(10, 2);
  const BlockId old[] = {1, 2}, young[] = {3, 4};
  order.enter(old, nullptr);
  order.add(1, 0, Heat::kHot);
  order.add(2, 1, Heat::kHot);
  order.enter(young, nullptr);
  order.add(3, 0, Heat::kHot);
  order.add(4, 1, Heat::kCold);
  EXPECT_EQ(order.next(), 4);
  order.remove(4);
  EXPECT_EQ(order.next(), 1) << "of equals the full group's";
}

TEST(EvictedBlocksTest, RemembersUsesAndTimeAndFades) {
  EvictedBlocks evicted(64);
  EXPECT_FALSE(evicted.recall(digest_of(0)));
  for (int n = 0; n < 1000; ++n) {
    evicted.remember(digest_of(n),
                     {.uses = static_cast<std::uint32_t>(n % 3 + 1), .last_use = static_cast<std::uint32_t>(n)});
    const auto memory = evicted.recall(digest_of(n));
    ASSERT_TRUE(memory);
    EXPECT_EQ(memory->uses, static_cast<std::uint32_t>(n % 3 + 1));
    EXPECT_EQ(memory->last_use, static_cast<std::uint32_t>(n));
  }
  int left = 0;
  for (int n = 0; n < 1000; ++n) {
    if (const auto memory = evicted.recall(digest_of(n))) {
      ++left;
      EXPECT_EQ(memory->last_use, static_cast<std::uint32_t>(n)) << "nobody else's memory";
    }
  }
  EXPECT_GT(left, 32);
  EXPECT_LE(left, 64);
}

}  // namespace
}  // namespace coppice::kv

namespace coppice::test {
namespace {

class EvictionTest : public KvTest {};

// A stream of texts that nobody asks for again, and one that comes back after each four of them: plain LRU would lose
// it each time.
TEST_P(EvictionTest, ATextThatComesBackOutlivesAStreamOfOthers) {
  if (GetParam().constant_hash) GTEST_SKIP() << "evicted blocks can't be told apart";
  open(20, /*verify_each=*/false);
  const Tokens favourite = words(100, 5 * bs());
  std::int64_t cached = 0;
  for (int round = 0; round < 40; ++round) {
    for (int k = 0; k < 4; ++k) serve(words(1000 + (round * 4 + k) * 5 * bs(), 5 * bs()));
    cached += rig().match(favourite);
    serve(favourite);
  }
  EXPECT_GE(cached, 20 * 5 * bs()) << "it isn't kept";
}

INSTANTIATE_TEST_SUITE_P(Shapes, EvictionTest, testing::ValuesIn(all_shapes()), shape_name);

}  // namespace
}  // namespace coppice::test
