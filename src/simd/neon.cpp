#include "simd/neon.h"

#if defined(__aarch64__) && defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

namespace coppice::simd {

NeonBytes neon_bytes_of_cpu() {
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) == 0) return NeonBytes::kNone;
  return (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0 ? NeonBytes::kI8mm : NeonBytes::kDotprod;
}

}  // namespace coppice::simd

#elif defined(__aarch64__) && defined(__APPLE__)

#include <sys/sysctl.h>

#include <cstddef>

namespace coppice::simd {

namespace {

bool has(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

}  // namespace

NeonBytes neon_bytes_of_cpu() {
  if (!has("hw.optional.arm.FEAT_DotProd")) return NeonBytes::kNone;
  return has("hw.optional.arm.FEAT_I8MM") ? NeonBytes::kI8mm : NeonBytes::kDotprod;
}

}  // namespace coppice::simd

#else

namespace coppice::simd {

NeonBytes neon_bytes_of_cpu() {
  return NeonBytes::kNone;
}

}  // namespace coppice::simd

#endif
