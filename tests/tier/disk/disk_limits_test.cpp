// Breaker and Allowance.
#include <gtest/gtest.h>

#include <chrono>

#include "tier/breaker.h"
#include "tier/disk/allowance.h"

namespace coppice::tier {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

TEST(Breaker, TriesAgainAfterPausesThatDouble) {
  Breaker breaker;
  Clock::time_point now{};
  EXPECT_TRUE(breaker.fail(now));
  for (const int pause : {5, 10, 20, 40, 80, 160, 300, 300}) {
    EXPECT_FALSE(breaker.allows(now + seconds(pause) - seconds(1)));
    EXPECT_FALSE(breaker.fail(now + seconds(1)));  // was under way: says nothing new
    now += seconds(pause);
    EXPECT_TRUE(breaker.allows(now));
    EXPECT_FALSE(breaker.fail(now));  // off as before
  }
  EXPECT_TRUE(breaker.succeed());
  EXPECT_TRUE(breaker.allows(now) && !breaker.off());
  EXPECT_FALSE(breaker.succeed());
  EXPECT_TRUE(breaker.fail(now));
  EXPECT_TRUE(breaker.allows(now + seconds(5)));
}

TEST(Breaker, ToleratesSomeFailuresInARow) {
  Breaker breaker(2);
  const Clock::time_point now{};
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(breaker.fail(now) || breaker.fail(now) || breaker.off());
    EXPECT_FALSE(breaker.succeed());
  }
  EXPECT_FALSE(breaker.fail(now) || breaker.fail(now));
  EXPECT_TRUE(breaker.fail(now) && breaker.off());
}

TEST(Allowance, NoDaySeesMore) {
  constexpr std::uint64_t kADay = 1000;
  Allowance allowance(kADay);
  std::uint64_t spent = 0;
  const Clock::time_point begun(hours(1000));
  EXPECT_FALSE(allowance.spend(101, begun));
  for (Clock::time_point now = begun; now < begun + hours(24); now += seconds(10)) {
    while (allowance.spend(1, now)) ++spent;
  }
  EXPECT_LE(spent, kADay);
  EXPECT_GE(spent, kADay - 10);
  // What isn't spent gathers for a tenth of a day.
  spent = 0;
  while (allowance.spend(1, begun + hours(240))) ++spent;
  EXPECT_EQ(spent, kADay / 10);
  EXPECT_TRUE(Allowance(0).spend(1ULL << 60, begun));
}

}  // namespace
}  // namespace coppice::tier
