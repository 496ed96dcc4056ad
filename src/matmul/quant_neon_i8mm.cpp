// The kernel for 64-bit ARM with products of 2 x 8 and 8 x 2 bytes.
#include <cstdlib>

#if defined(__aarch64__)
#define COPPICE_SIMD_NEON_BYTES 2
#include "matmul/quant_kernel-inl.h"
#endif
#include "matmul/quant_kernel.h"

namespace coppice::matmul {

void run_neon_i8mm([[maybe_unused]] const QuantProducts& products, [[maybe_unused]] Claims& claims,
                   [[maybe_unused]] Claims::Worker worker) {
#if defined(__aarch64__)
  N_NEON_I8MM::run(products, claims, worker);
#else
  std::abort();  // never called: simd::neon_bytes()
#endif
}

}  // namespace coppice::matmul
