// Partial states of the same queries that several warps have, in the order of registers of a product with rows: a
// thread has, of two rows (its first and the eighth after it), two neighbouring sums in every eight. One hands its
// state over in shared memory, one takes it.
#pragma once

#include "cuda/warp_product.cuh"

namespace coppice::attention::cuda {

/// sums: where this thread's go, `stride` apart; states: where its first row's goes.
template <int kParts, int kPartSums>
__device__ inline void hand_over(const float (&max)[2], const float (&sum)[2], const float (&sums)[kParts][kPartSums],
                                 float* to, int stride, float2* states, int lane) {
#pragma unroll
  for (int i = 0; i < kParts * kPartSums; ++i) to[i * stride] = sums[i / kPartSums][i % kPartSums];
  if (lane % 4 == 0) {
    states[0] = {max[0], sum[0]};
    states[8] = {max[1], sum[1]};
  }
}

/// What hand_over() has left becomes part of this thread's state.
template <int kParts, int kPartSums>
__device__ inline void take_over(float (&max)[2], float (&sum)[2], float (&sums)[kParts][kPartSums], const float* from,
                                 int stride, const float2* states) {
  float mine[2], theirs[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float2 state = states[8 * r];
    const float m = fmaxf(max[r], state.x), base = m == -INFINITY ? 0.0F : m;
    mine[r] = coppice::cuda::exp2_fast(max[r] - base);
    theirs[r] = coppice::cuda::exp2_fast(state.x - base);
    max[r] = m;
    sum[r] = sum[r] * mine[r] + state.y * theirs[r];
  }
#pragma unroll
  for (int i = 0; i < kParts * kPartSums; ++i) {
    float& x = sums[i / kPartSums][i % kPartSums];
    x = x * mine[i / 2 % 2] + from[i * stride] * theirs[i / 2 % 2];
  }
}

}  // namespace coppice::attention::cuda
