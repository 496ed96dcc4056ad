#include "matmul/quant_kernel.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "simd/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul/quant_kernel.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "matmul/quant_kernel-inl.h"
#include "simd/kernel-inl.h"

// Highway's macros for the target are those of quant_kernel-inl.h here.
HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::HWY_NAMESPACE {

bool supports() {
  return kByteDots != ByteDots::kNone;
}

}  // namespace coppice::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::matmul {

namespace {

HWY_EXPORT(supports);
HWY_EXPORT(run);

}  // namespace

bool kernel_supports() {
  return COPPICE_SIMD_CALL(supports)() || simd::neon_bytes() != simd::NeonBytes::kNone;
}

void run_kernel(const QuantProducts& products, Claims& claims, Claims::Worker worker) {
  switch (simd::neon_bytes()) {
    case simd::NeonBytes::kI8mm:
      return run_neon_i8mm(products, claims, worker);
    case simd::NeonBytes::kDotprod:
      return run_neon_dotprod(products, claims, worker);
    case simd::NeonBytes::kNone:
      COPPICE_SIMD_CALL(run)(products, claims, worker);
  }
}

}  // namespace coppice::matmul
#endif  // HWY_ONCE
