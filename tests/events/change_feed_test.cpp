#include "events/change_feed.h"

#include <gtest/gtest.h>

#include <vector>

namespace coppice::events {
namespace {

const kv::Namespace kNoSpace;
const std::vector<kv::Token> kTokens = {1, 2, 3, 4};

void enter(ChangeFeed& feed, std::uint8_t n) {
  kv::Digest digest{};
  digest[0] = n;
  feed.entered({.digest = digest, .parent = {}, .is_first = true, .text = kTokens, .ns = &kNoSpace});
}

TEST(ChangeFeedTest, BeginsAnewAndRingsOnceForWhatWaits) {
  ChangeFeed feed;
  int rings = 0;
  feed.on_change([&] { ++rings; });
  Changes changes = feed.take();
  EXPECT_TRUE(changes.anew);
  EXPECT_TRUE(changes.list.empty());
  enter(feed, 1);
  enter(feed, 2);
  EXPECT_EQ(rings, 1);
  changes = feed.take();
  EXPECT_FALSE(changes.anew);
  EXPECT_EQ(changes.list.size(), 2U);
  EXPECT_EQ(changes.symbols.size(), 8U);
  EXPECT_TRUE(feed.take().empty());
}

TEST(ChangeFeedTest, ThrowsAwayWhatNobodyTakesAndIsToldAllAnew) {
  ChangeFeed feed(2);
  int wakes = 0;
  feed.on_want([&] { ++wakes; });
  feed.take();
  enter(feed, 1);
  enter(feed, 2);
  EXPECT_FALSE(feed.wants_all());
  enter(feed, 3);
  EXPECT_TRUE(feed.wants_all());
  enter(feed, 4);
  EXPECT_TRUE(feed.take().empty());  // a part would be wrong
  EXPECT_EQ(wakes, 1);

  feed.begin_all();
  for (std::uint8_t n = 1; n <= 5; ++n) enter(feed, n);  // these have no limit
  feed.end_all();
  EXPECT_FALSE(feed.wants_all());
  enter(feed, 6);
  enter(feed, 7);
  const Changes changes = feed.take();
  EXPECT_TRUE(changes.anew);
  EXPECT_EQ(changes.list.size(), 7U);
}

TEST(ChangeFeedTest, IsToldNothingAnewBeforeTheLastWasTaken) {
  ChangeFeed feed;
  int wakes = 0;
  feed.on_want([&] { ++wakes; });
  feed.want_all();
  EXPECT_EQ(wakes, 1);
  EXPECT_FALSE(feed.wants_all());
  feed.take();
  EXPECT_EQ(wakes, 2);  // the engine may sleep
  EXPECT_TRUE(feed.wants_all());
}

}  // namespace
}  // namespace coppice::events
