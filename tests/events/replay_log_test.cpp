#include "events/replay_log.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace coppice::events {
namespace {

std::shared_ptr<const std::string> batch(std::string text) {
  return std::make_shared<const std::string>(std::move(text));
}

TEST(ReplayLogTest, KeepsTheLastOnes) {
  ReplayLog log(100, 3, 1000);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(log.add(batch(std::to_string(i))), 100U + static_cast<unsigned>(i));
  EXPECT_EQ(log.first(), 102U);
  EXPECT_EQ(log.end(), 105U);
  EXPECT_EQ(*log.at(102), "2");
  EXPECT_EQ(*log.at(104), "4");
}

TEST(ReplayLogTest, KeepsNoMoreBytesThanItMayButTheLastOne) {
  ReplayLog log(0, 100, 10);
  log.add(batch("12345"));
  log.add(batch("12345"));
  EXPECT_EQ(log.first(), 0U);
  log.add(batch("1"));
  EXPECT_EQ(log.first(), 1U);
  log.add(batch(std::string(50, 'x')));
  EXPECT_EQ(log.first(), 3U);
  EXPECT_EQ(log.end(), 4U);
}

}  // namespace
}  // namespace coppice::events
