// Products of a warp on the tensor cores (sm_80), and the 16-bit numbers that they take.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace coppice::cuda {

__device__ inline void load_matrices(std::uint32_t (&a)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}

__device__ inline void load_matrices_transposed(std::uint32_t (&a)[4], std::uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(at)
               : "memory");
}
/// One product of a warp, D += A * B: A 16 x 16, B 16 x 8.
template <class T>
__device__ inline void multiply_16x8(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
#define COPPICE_MMA(type)                                                    \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                 \
      ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                       \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (__is_same(T, __nv_bfloat16)) {
    COPPICE_MMA("bf16");
  } else {
    COPPICE_MMA("f16");
  }
#undef COPPICE_MMA
}

/// Two numbers in one register, `low` first.
template <class T>
__device__ inline std::uint32_t pack(float low, float high) {
  std::uint32_t bits;
  if constexpr (__is_same(T, __nv_bfloat16)) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  }
  return bits;
}

/// 2 to the x; 0 for minus infinity.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace coppice::cuda
