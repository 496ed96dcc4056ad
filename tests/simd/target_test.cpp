// COPPICE_SIMD. It is read once in a process, so all tests here run with the same name, of no instruction set.
#include "simd/target.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace coppice {
namespace {

const bool kAsked = setenv("COPPICE_SIMD", "AVX9", 1) == 0;

TEST(SimdTarget, ANameThatThisCpuHasNotIsToldAndRulesNothingOut) {
  ASSERT_TRUE(kAsked);
  EXPECT_TRUE(simd::unheeded().starts_with("AVX9,"));
  for (const std::string_view name : simd::targets()) {
    EXPECT_NE(simd::unheeded().find(name), std::string_view::npos) << name;
  }
  EXPECT_EQ(simd::target(), simd::targets().front());
  EXPECT_FALSE(simd::use("AVX9"));
  EXPECT_EQ(simd::target(), simd::targets().front());
  EXPECT_FALSE(simd::use(""));
}

TEST(SimdTarget, ANameRulesOutAllThatIsBetter) {
  for (const std::string_view name : simd::targets()) {
    ASSERT_TRUE(simd::use(name));
    EXPECT_EQ(simd::target(), name);
    EXPECT_EQ(simd::amx(), name == "AMX");
    EXPECT_EQ(simd::neon_bytes() == simd::NeonBytes::kI8mm, name == "NEON_I8MM");
    EXPECT_EQ(simd::neon_bytes() == simd::NeonBytes::kDotprod, name == "NEON_DOTPROD");
  }
  simd::use(simd::targets().front());
}

TEST(SimdTarget, ThoseOfHighwayAreThere) {
  for (std::int64_t bits = hwy::SupportedTargets() & HWY_TARGETS; bits != 0; bits &= bits - 1) {
    EXPECT_TRUE(std::ranges::count(simd::targets(), hwy::TargetName(bits & -bits))) << hwy::TargetName(bits & -bits);
  }
}

/// A system may list what it withholds from this process, not the other way round.
TEST(SimdTarget, AmxIsThereOnlyWhereTheSystemListsIt) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpu((std::istreambuf_iterator<char>(file)), {});
  const auto has = [&](const char* flag) { return cpu.find(flag) != std::string::npos; };
  if (std::ranges::count(simd::targets(), "AMX") == 0) GTEST_SKIP() << "no AMX";
  EXPECT_TRUE(has("amx_tile") && has("amx_bf16"));
}

}  // namespace
}  // namespace coppice
