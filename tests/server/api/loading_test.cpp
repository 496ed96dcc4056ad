#include "server/api/loading.h"

#include <gtest/gtest.h>

#include <chrono>

namespace coppice::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Loading::Clock::time_point kBegin{std::chrono::hours(1)};

TEST(Loading, AsksToWaitForTheRestOfTheStageAndAQuarterMore) {
  Loading loading;
  EXPECT_EQ(loading.retry_after_s(kBegin), 5);  // nobody knows yet
  loading.set("weights", 0, kBegin);
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(3)), 5);
  loading.set("weights", 0.25, kBegin + seconds(4));
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(4)), 15);
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(9)), 10);  // it is told in steps: meanwhile the rest is shorter
  loading.set("memory", 0.5, kBegin + seconds(16));           // it begins here, and so much was never waited for
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(16)), 5);
  loading.set("memory", 0.75, kBegin + seconds(24));
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(24)), 10);
  loading.set("starting", 1, kBegin + seconds(24));
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(24)), 2);
}

TEST(Loading, AsksForNoMoreThanClientsWait) {
  Loading loading;
  loading.set("weights", 0, kBegin);
  loading.set("weights", 0.01, kBegin + seconds(30));
  EXPECT_EQ(loading.retry_after_s(kBegin + seconds(30)), 60);
  Loading fast;
  fast.set("weights", 0, kBegin);
  fast.set("weights", 0.5, kBegin + milliseconds(10));
  EXPECT_EQ(fast.retry_after_s(kBegin + milliseconds(10)), 5);  // what follows may take longer
}

}  // namespace
}  // namespace coppice::server
