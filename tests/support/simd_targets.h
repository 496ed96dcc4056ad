// Runs a test on one instruction set after the other, all that this machine has: as COPPICE_SIMD does, with lesser ones
// for what isn't compiled for the one at hand.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "simd/target.h"

namespace coppice::test {

class EachSimdTarget : public testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override { ASSERT_TRUE(simd::use(GetParam())); }
  void TearDown() override { simd::use(simd::targets().front()); }
};

/// Calls f() on each instruction set: for tests whose expectation takes longer than what is tested.
template <class F>
void on_each_target(F&& f) {
  for (const std::string_view name : simd::targets()) {
    SCOPED_TRACE(name);
    EXPECT_TRUE(simd::use(name));
    f();
  }
  simd::use(simd::targets().front());
}

inline const std::vector<std::string_view>& simd_targets() {
  return simd::targets();
}

inline std::string simd_target_name(const testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}

}  // namespace coppice::test
