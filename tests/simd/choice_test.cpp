// COPPICE_SIMD with the name of an instruction set that this CPU has, in small letters: what kernels run then. It
// is read once in a process.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <string>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "simd/choice_test.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace coppice::HWY_NAMESPACE {

std::int64_t kernel() {
  return HWY_TARGET;
}

}  // namespace coppice::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <gtest/gtest.h>

#include "simd/target.h"

namespace coppice {
namespace {

HWY_EXPORT(kernel);

TEST(SimdChoice, KernelsRunOnTheInstructionSetThatIsNamedWhateverIsAskedBetween) {
  const std::int64_t compiled = hwy::SupportedTargets() & HWY_TARGETS;
  const std::int64_t lesser = compiled & (compiled - 1);  // lower bits are better targets
  if (lesser == 0) GTEST_SKIP() << "this CPU has one instruction set only";
  const std::int64_t named = lesser & -lesser;
  std::string name = hwy::TargetName(named);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  ASSERT_EQ(setenv("COPPICE_SIMD", name.c_str(), 1), 0);

  simd::choose_target();
  EXPECT_EQ(HWY_DYNAMIC_DISPATCH(kernel)(), named);
  EXPECT_EQ(simd::target(), hwy::TargetName(named));
  EXPECT_FALSE(simd::amx());
  EXPECT_EQ(simd::unheeded(), "");
  EXPECT_GT(simd::targets().size(), 1U);
  EXPECT_EQ(HWY_DYNAMIC_DISPATCH(kernel)(), named);
}

}  // namespace
}  // namespace coppice
#endif  // HWY_ONCE
