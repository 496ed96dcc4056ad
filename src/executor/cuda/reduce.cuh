// Sums over warps and thread blocks, in an order that is always the same.
#pragma once

#include <cuda_runtime.h>

namespace coppice::executor::cuda {

template <class T>
__device__ inline T warp_sum(T x) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(~0U, x, i);
  return x;
}

/// Of a thread block of up to 1,024 threads, for all of them. parts: shared memory for 32, which may be used again at
/// once.
template <class T>
__device__ inline T block_sum(T x, T* parts) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  x = warp_sum(x);
  if (lane == 0) parts[warp] = x;
  __syncthreads();
  const T sum = warp_sum(lane < static_cast<int>(blockDim.x) / 32 ? parts[lane] : T{});
  __syncthreads();
  return sum;
}

}  // namespace coppice::executor::cuda
