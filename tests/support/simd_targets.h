// Runs a test on one instruction set after the other, all that this machine has: as COPPICE_SIMD does, with lesser ones for
// what isn't compiled for the one at hand.
#pragma once

#include <gtest/gtest.h>

// Kernels are compiled for it, too.
#define HWY_WANT_AVX3_DL 1
#include <hwy/targets.h>

#include <cstdint>
#include <string>
#include <vector>

#include "simd/target.h"

namespace coppice::test {

class EachSimdTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { use(GetParam()); }
  void TearDown() override { use(kAll); }

 private:
  static constexpr std::int64_t kAll = 1;

  /// The target and all of higher bits.
  static void use(std::int64_t target) {
    simd::choose_target();
    hwy::GetChosenTarget().Update(hwy::SupportedTargets() & ~(target - 1));
  }
};

inline std::vector<std::int64_t> simd_targets() {
  std::vector<std::int64_t> all;
  for (std::int64_t bits = hwy::SupportedTargets() & HWY_TARGETS; bits != 0; bits &= bits - 1) {
    all.push_back(bits & -bits);
  }
  return all;
}

inline std::string simd_target_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace coppice::test
