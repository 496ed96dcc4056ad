// The end of a launch: when all items are done, every warp merges the partial states of some rows and heads.
#pragma once

#include "attention/cuda/tile.cuh"

namespace coppice::attention::cuda {

/// Waits until `n` has been counted.
__device__ inline void wait_until_done(const std::uint32_t* done, std::uint32_t n) {
  std::uint32_t seen = 0;
  do {
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(seen) : "l"(done) : "memory");
  } while (seen < n);
}

/// The outputs of up to kN rows and heads from their partial states, in the order of their slots. By one warp; its loads for all of
/// them are on their way together.
template <class T, int D, int kN>
struct Merger {
  static constexpr int kPieces = (D / 4 + 31) / 32;  ///< float4 of a lane
  const TreeAttention& a;
  int lane;

  struct One {
    int row = 0, h = 0, n_slots = 0;
    const float2* states = nullptr;
    const float4* sums = nullptr;
    float max = -INFINITY, weight = 0.0F, weights = 0.0F;
    float4 total[kPieces] = {};
  };
  One ones[kN];

  __device__ void set(int i, const MergeRow& m, int h) {
    One& one = ones[i];
    one = {};
    one.row = m.row;
    one.h = h;
    one.n_slots = m.n_slots;
    const std::int64_t first = static_cast<std::int64_t>(m.first_slot) * a.n_head + h;
    one.states = reinterpret_cast<const float2*>(a.scratch.states) + first;
    one.sums = reinterpret_cast<const float4*>(a.scratch.sums + first * D) + lane;
  }

  /// Slots [first, +8 / kN) of all.
  __device__ void load(float4 (&x)[kN][8 / kN][kPieces], int first) const {
    const std::int64_t stride = static_cast<std::int64_t>(a.n_head) * D / 4;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
#pragma unroll
      for (int s = 0; s < 8 / kN; ++s) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          x[i][s][p] = {0.0F, 0.0F, 0.0F, 0.0F};
          if (first + s < ones[i].n_slots && lane + 32 * p < D / 4)
            x[i][s][p] = __ldcg(ones[i].sums + (first + s) * stride + 32 * p);
        }
      }
    }
  }

  __device__ void run() {
    float4 x[kN][8 / kN][kPieces];
    load(x, 0);
    int most = 0;
#pragma unroll
    for (One& one : ones) {
      most = max(most, one.n_slots);
      for (int s = lane; s < one.n_slots; s += 32)
        one.max = fmaxf(one.max, __ldcg(one.states + static_cast<std::int64_t>(s) * a.n_head).x);
    }
#pragma unroll
    for (One& one : ones) {
#pragma unroll
      for (int i = 16; i > 0; i /= 2) one.max = fmaxf(one.max, __shfl_xor_sync(~0U, one.max, i));
    }
    for (int first = 0; first < most; first += 8 / kN) {
      if (first % 32 == 0) {
#pragma unroll
        for (One& one : ones) {
          one.weight = 0.0F;
          if (first + lane >= one.n_slots) continue;
          const float2 state = __ldcg(one.states + static_cast<std::int64_t>(first + lane) * a.n_head);
          one.weight = exp2_fast(state.x - one.max);
          one.weights += one.weight * state.y;
        }
      }
#pragma unroll
      for (int i = 0; i < kN; ++i) {
#pragma unroll
        for (int s = 0; s < 8 / kN; ++s) {
          const float w = __shfl_sync(~0U, ones[i].weight, first % 32 + s);
#pragma unroll
          for (int p = 0; p < kPieces; ++p) {
            float4& total = ones[i].total[p];
            total.x += w * x[i][s][p].x;
            total.y += w * x[i][s][p].y;
            total.z += w * x[i][s][p].z;
            total.w += w * x[i][s][p].w;
          }
        }
      }
      if (first + 8 / kN < most) load(x, first + 8 / kN);
    }
#pragma unroll
    for (One& one : ones) write(one);
  }

  __device__ void write(One& one) const {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) one.weights += __shfl_xor_sync(~0U, one.weights, i);
    if (one.n_slots == 0) return;
    const float factor = 1.0F / one.weights;
    auto* out =
        reinterpret_cast<uint2*>(static_cast<T*>(a.out) + (static_cast<std::int64_t>(one.row) * a.n_head + one.h) * D);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (lane + 32 * p >= D / 4) continue;
      const float4& x = one.total[p];
      out[lane + 32 * p] = {pack<T>(x.x * factor, x.y * factor), pack<T>(x.z * factor, x.w * factor)};
    }
  }
};

/// Rows and heads i, i + stride, ... below n.
template <class T, int D, int kN>
__device__ void merge_from(const TreeAttention& a, int i, int stride, int n, int lane) {
  for (; i < n; i += kN * stride) {
    Merger<T, D, kN> merger{a, lane};
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const int at = i + k * stride;
      merger.set(k, at < n ? a.merge_rows[at / a.n_head] : MergeRow{}, at % a.n_head);
    }
    merger.run();
  }
}

/// By the computing warps. The last thread block to leave zeroes the control words for the next launch.
template <class T, int D>
__device__ void merge_rows(const TreeAttention& a, int warp, int lane) {
  const int n = a.counts->merge_rows * a.n_head;
  if (n > 0) {
    if (warp == 0 && lane == 0)
      wait_until_done(a.scratch.control + kDone, 2U * static_cast<std::uint32_t>(a.counts->items * a.n_kv_head));
    sync_named(3, 32 * kComputeWarps);
    const int first = static_cast<int>(blockIdx.x) * kComputeWarps + warp,
              stride = static_cast<int>(gridDim.x) * kComputeWarps;
    if (n > stride) {
      merge_from<T, D, 4>(a, first, stride, n, lane);
    } else {
      merge_from<T, D, 1>(a, first, stride, n, lane);
    }
  } else {
    sync_named(3, 32 * kComputeWarps);  // both warpgroups have counted
  }
  if (warp == 0 && lane == 0) {
    __threadfence();
    if (atomicInc(a.scratch.control + kGone, gridDim.x - 1) == gridDim.x - 1) {
      a.scratch.control[kClaimed] = 0;
      a.scratch.control[kDone] = 0;
    }
  }
}

}  // namespace coppice::attention::cuda
