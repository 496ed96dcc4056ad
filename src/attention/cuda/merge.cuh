// The end of a launch: when all items are done, every warp merges the partial states of some rows and heads.
#pragma once

#include "attention/cuda/tile.cuh"

namespace coppice::attention::cuda {

/// What a thread block counts when its items are done. All shares add up to 2^31: when the last block has arrived the
/// highest bit has turned and the others are as before the launch, so nothing need be zeroed.
__device__ inline std::uint32_t share_of_block() {
  return blockIdx.x == 0 ? (1U << 31) - (gridDim.x - 1) : 1U;
}
/// After all threads of the block have stored what others will read. Gives what was counted before.
__device__ inline std::uint32_t arrive(std::uint32_t* arrived) {
  std::uint32_t before = 0;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(arrived), "r"(share_of_block())
               : "memory");
  return before;
}
/// Until all thread blocks have arrived. before: what arrive() gave.
__device__ inline void wait_for_all(const std::uint32_t* arrived, std::uint32_t before) {
  std::uint32_t seen = before + share_of_block();
  while (((seen ^ before) >> 31) == 0) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
  }
}

/// The outputs of up to kN rows and heads from their partial states, in the order of their slots. By one warp; its
/// loads for all of them are on their way together, as many as it has registers for.
template <class T, int D, int kN>
struct Merger {
  static constexpr int kPieces = (D / 4 + 31) / 32;  ///< float4 of a lane
  static constexpr int kChunk = 24;                  ///< slots whose weights the lanes hold
  static constexpr int kSlots = kChunk / kN / kPieces;
  static_assert(kChunk % kSlots == 0);
  const TreeAttention& a;
  int lane;

  struct One {
    int row = 0, h = 0, n_slots = 0;
    const float2* states = nullptr;
    const float4* sums = nullptr;
    float2 state = {-INFINITY, 0.0F};  ///< of the chunk's slot with this lane's number
    float max = -INFINITY, weight = 0.0F, weights = 0.0F;
    float4 total[kPieces] = {};
  };
  One ones[kN];
  int most = 0;  ///< slots

  /// Rows and heads i, i + stride, ... below n. Reads the plan only.
  __device__ void set(int i, int stride, int n) {
    most = 0;
#pragma unroll
    for (int k = 0; k < kN; ++k) {
      const int at = i + k * stride, h = at % a.n_head;
      const MergeRow m = at < n ? a.merge_rows[at / a.n_head] : MergeRow{};
      One& one = ones[k];
      one = {};
      one.row = m.row;
      one.h = h;
      one.n_slots = m.n_slots;
      const std::int64_t first = static_cast<std::int64_t>(m.first_slot) * a.n_head + h;
      one.states = reinterpret_cast<const float2*>(a.scratch.states) + first;
      one.sums = reinterpret_cast<const float4*>(a.scratch.sums + first * D) + lane;
      most = max(most, m.n_slots);
    }
  }

  __device__ float2 state_of(const One& one, int slot) const {
    if (lane >= kChunk || slot >= one.n_slots) return {-INFINITY, 0.0F};
    return __ldcg(one.states + static_cast<std::int64_t>(slot) * a.n_head);
  }

  /// Slots [first, +kSlots) of all.
  __device__ void load(float4 (&x)[kN][kSlots][kPieces], int first) const {
    const std::int64_t stride = static_cast<std::int64_t>(a.n_head) * D / 4;
#pragma unroll
    for (int i = 0; i < kN; ++i) {
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
#pragma unroll
        for (int p = 0; p < kPieces; ++p) {
          x[i][s][p] = {0.0F, 0.0F, 0.0F, 0.0F};
          if (first + s < ones[i].n_slots && lane + 32 * p < D / 4)
            x[i][s][p] = __ldcg(ones[i].sums + (first + s) * stride + 32 * p);
        }
      }
    }
  }

  __device__ void add(const float4 (&x)[kN][kSlots][kPieces], int first) {
#pragma unroll
    for (int i = 0; i < kN; ++i) {
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        const float w = __shfl_sync(~0U, ones[i].weight, first % kChunk + s);
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
  }

  __device__ void run() {
    float4 x[kN][kSlots][kPieces];
#pragma unroll
    for (One& one : ones) one.state = state_of(one, lane);
    load(x, 0);
#pragma unroll
    for (One& one : ones) {
      one.max = one.state.x;
      for (int slot = kChunk + lane; slot - lane < one.n_slots; slot += kChunk)
        one.max = fmaxf(one.max, state_of(one, slot).x);
#pragma unroll
      for (int i = 16; i > 0; i /= 2) one.max = fmaxf(one.max, __shfl_xor_sync(~0U, one.max, i));
    }
    for (int first = 0; first < most; first += kSlots) {
      if (first > 0) load(x, first);
      if (first % kChunk == 0) {
#pragma unroll
        for (One& one : ones) {
          if (first > 0) one.state = state_of(one, first + lane);
          one.weight = first + lane < one.n_slots ? exp2_fast(one.state.x - one.max) : 0.0F;
          one.weights += one.weight * one.state.y;
        }
      }
      add(x, first);
    }
#pragma unroll
    for (One& one : ones) write(one);
  }

  __device__ void write(One& one) const {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) one.weights += __shfl_xor_sync(~0U, one.weights, i);
    if (one.n_slots == 0) return;
    const float factor = 1.0F / with_sink(a, one.h, one.max, one.weights);
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

/// Rows and heads i, i + stride, ... below n; calls `wait` before it reads what the items' warps have written.
template <class T, int D, int kN, class Wait>
__device__ void merge_from(const TreeAttention& a, int i, int stride, int n, int lane, Wait wait) {
  Merger<T, D, kN> merger{a, lane};
  merger.set(i, stride, n);
  wait();
  for (; i < n; i += kN * stride) {
    merger.run();
    merger.set(i + kN * stride, stride, n);
  }
}

/// By the computing warps, when their items are done.
template <class T, int D>
__device__ void merge_rows(const TreeAttention& a, int warp, int lane) {
  const bool is_first = warp == 0 && lane == 0;
  std::uint32_t* const arrived = a.scratch.control + kArrived;
  sync_named(kBothGroups, 32 * kComputeWarps);
  const std::uint32_t before = is_first ? arrive(arrived) : 0;
  const auto wait = [&] {
    if (is_first) wait_for_all(arrived, before);
    sync_named(kBothGroups, 32 * kComputeWarps);
  };
  const int n = a.counts->merge_rows * a.n_head;
  const int first = static_cast<int>(blockIdx.x) * kComputeWarps + warp,
            stride = static_cast<int>(gridDim.x) * kComputeWarps;
  if (n > 2 * stride) {
    merge_from<T, D, 4>(a, first, stride, n, lane, wait);
  } else if (n > stride) {
    merge_from<T, D, 2>(a, first, stride, n, lane, wait);
  } else if (n > 0) {
    merge_from<T, D, 1>(a, first, stride, n, lane, wait);
  } else if (blockIdx.x == 0) {
    wait();
  }
  if (is_first && blockIdx.x == 0) a.scratch.control[kClaimed] = 0;  // who has arrived claims no more
}

}  // namespace coppice::attention::cuda
