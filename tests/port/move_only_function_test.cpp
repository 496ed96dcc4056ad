#include <gtest/gtest.h>

#include <memory>
#include <string>

#undef __cpp_lib_move_only_function  // the stand-in, here too
#include "port/move_only_function.h"

namespace coppice::port {
namespace {

TEST(MoveOnlyFunctionTest, HoldsWhatCannotBeCopied) {
  MoveOnlyFunction<int(std::string, int)> f = [kept = std::make_unique<int>(3)](const std::string& text, int n) {
    return *kept + n + static_cast<int>(text.size());
  };
  MoveOnlyFunction<int(std::string, int)> moved = std::move(f);
  EXPECT_EQ(moved("ab", 5), 10);
  EXPECT_FALSE(f);  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(moved);
}

TEST(MoveOnlyFunctionTest, LetsGoOfWhatItHolds) {
  const auto kept = std::make_shared<int>(0);
  MoveOnlyFunction<void()> f = [kept] { ++*kept; };
  f();
  f();
  EXPECT_EQ(*kept, 2);
  EXPECT_EQ(kept.use_count(), 2);
  f = nullptr;
  EXPECT_FALSE(f);
  EXPECT_EQ(kept.use_count(), 1);
}

}  // namespace
}  // namespace coppice::port
