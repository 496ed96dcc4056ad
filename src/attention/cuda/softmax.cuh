// Scores of a warpgroup's 64 queries become weights, in the registers of its products: a thread holds, of two rows (its
// first and the eighth after it), two neighbouring values in every eight.
#pragma once

#include "attention/cuda/tile.cuh"

namespace coppice::attention::cuda {

/// Keeps the compiler from moving uses of a product's registers to where the tensor cores still write them.
template <int kN>
__device__ inline void pin(float (&x)[kN]) {
#pragma unroll
  for (float& y : x) asm volatile("" : "+f"(y)::"memory");
}

/// Tokens first_token, ... that a row doesn't see get no weight.
template <int kN>
__device__ inline void mask_scores(float (&s)[kN], const ItemRow (&row)[2], int first_token, int lane) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const int token = first_token + i / 4 * 8 + lane % 4 * 2 + i % 2;
    const ItemRow& r = row[i / 2 % 2];
    if (token < r.lo || token >= r.hi) s[i] = -INFINITY;
  }
}

/// max, sum: of the rows so far. factor: what their sums of weighted values are to be multiplied with.
template <int kN>
__device__ inline void weigh(float (&s)[kN], float scale, float (&max)[2], float (&sum)[2], float (&factor)[2]) {
  float most[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) most[i % 2] = fmaxf(most[i % 2], fmaxf(s[2 * i], s[2 * i + 1]));
#pragma unroll
  for (int lanes = 1; lanes < 4; lanes *= 2) {
#pragma unroll
    for (float& m : most) m = fmaxf(m, __shfl_xor_sync(~0U, m, lanes));
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float m = fmaxf(max[r], most[r] * scale), base = m == -INFINITY ? 0.0F : m;
    factor[r] = exp2_fast(max[r] - base);
    max[r] = m;
    float added = 0.0F;
#pragma unroll
    for (int i = 0; i < kN / 4; ++i) {
#pragma unroll
      for (int e = 4 * i + 2 * r; e < 4 * i + 2 * r + 2; ++e) {
        s[e] = exp2_fast(fmaf(s[e], scale, -base));
        added += s[e];
      }
    }
    sum[r] = sum[r] * factor[r] + added;
  }
}

/// The weights as the tensor cores take them.
template <class T, int kN>
__device__ inline void pack_weights(std::uint32_t (&p)[kN / 8][4], const float (&s)[kN]) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) p[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]);
}

}  // namespace coppice::attention::cuda
