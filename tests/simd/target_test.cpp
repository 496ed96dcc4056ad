// COPPICE_SIMD. It is read once in a process, so all tests here run with the same name, of no instruction set.
#include "simd/target.h"

#include <gtest/gtest.h>

#include <cstdlib>

#define HWY_WANT_AVX3_DL 1  // as some kernels have
#include <hwy/highway.h>

namespace coppice {
namespace {

const bool kAsked = setenv("COPPICE_SIMD", "AVX9", 1) == 0;

TEST(SimdTarget, TheNameInUseRulesNothingOutThatAKernelIsCompiledFor) {
  const auto better = simd::better_than(simd::target());
  ASSERT_TRUE(better.has_value());
  EXPECT_EQ(*better & HWY_TARGETS, 0) << simd::target();
}

TEST(SimdTarget, ANameRulesOutAllThatIsBetter) {
  std::int64_t better = 0;
  for (std::int64_t bits = hwy::SupportedTargets(); bits != 0; bits &= bits - 1) {
    const std::int64_t target = bits & -bits;
    EXPECT_EQ(simd::better_than(hwy::TargetName(target)), better);
    better |= target;
  }
}

TEST(SimdTarget, ANameThatThisCpuHasNotIsToldAndRulesNothingOut) {
  ASSERT_TRUE(kAsked);
  const std::int64_t before = hwy::SupportedTargets();
  EXPECT_EQ(simd::unheeded(), "AVX9");
  EXPECT_EQ(hwy::SupportedTargets(), before);
  EXPECT_FALSE(simd::better_than("AVX9").has_value());
  EXPECT_FALSE(simd::better_than("").has_value());
}

}  // namespace
}  // namespace coppice
