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

bool supports(QuantType type) {
  return kByteDots == ByteDots::kExact || (kByteDots == ByteDots::kSmall && type != QuantType::kQ8_0);
}

void run(const QuantProducts& p, Claims& claims, int n_workers) {
  switch (p.type) {
    case QuantType::kQ4_0:
      return multiply<QuantType::kQ4_0>(p, claims, n_workers);
    case QuantType::kQ4_1:
      return multiply<QuantType::kQ4_1>(p, claims, n_workers);
    case QuantType::kQ8_0:
      return multiply<QuantType::kQ8_0>(p, claims, n_workers);
  }
}

}  // namespace coppice::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::matmul {

namespace {

HWY_EXPORT(supports);
HWY_EXPORT(run);

}  // namespace

bool kernel_supports(QuantType type) {
  return COPPICE_SIMD_CALL(supports)(type);
}

void run_kernel(const QuantProducts& products, Claims& claims, int n_workers) {
  COPPICE_SIMD_CALL(run)(products, claims, n_workers);
}

}  // namespace coppice::matmul
#endif  // HWY_ONCE
