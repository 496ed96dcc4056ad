// Items of at most eight queries on Hopper: a warpgroup's product would have 64 rows for them. Here tokens are the rows
// and queries the eight columns of the warps' own `mma`: each of the eight warps has 16 tokens of a step, and states of
// its own; at the end they are joined in shared memory, a query by a warp.
#pragma once

#include "attention/cuda/tile.cuh"

namespace coppice::attention::cuda {

/// An 8 x 8 matrix of 16-bit numbers over a warp's lanes, transposed.
__device__ inline std::uint32_t transposed(std::uint32_t x) {
  std::uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <class T, int D>
struct SlimComputer {
  using Shape = Tile<T, D>;
  static constexpr int kSteps = D / 16;
  static constexpr int kSpread =
      D % 32 == 0 ? 24 : 8;  ///< of a dim's bits, that queries change so that lanes meet other banks
  const TreeAttention& a;
  const Shared<T, D>& shared;
  const ItemHead& head;
  int warp, lane, n_queries;  ///< warp: of eight
  float scale;
  ItemRow row[2];  ///< of this lane's queries, 2 (lane % 4) and the next
  std::uint32_t q[kSteps][2];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  float sums[kSteps][4] = {};  ///< dims lane / 4 and 8 more; of each the two queries

  __device__ void read_queries(std::uint32_t queries) {
#pragma unroll
    for (int step = 0; step < kSteps; step += 2) {
      std::uint32_t x[4];
      const int dim = step * 16 + lane / 8 * 8;
      load_matrices(x, queries + static_cast<std::uint32_t>(lane % 8 * Shape::kSlimQueryBytes + min(dim, D - 8) * 2));
      q[step][0] = x[0];
      q[step][1] = x[1];
      if (step + 1 < kSteps) {
        q[step + 1][0] = x[2];
        q[step + 1][1] = x[3];
      }
    }
  }

  /// Where value `dim` of a stage's slot is, in bytes from the stage's keys or values.
  __device__ static std::uint32_t offset(int slot, int dim) {
    return static_cast<std::uint32_t>(offset_in_head(D, Shape::kTokens, slot, dim));
  }

  /// The weights of the warp's tokens, of a step whose first token in the item is `first_token`.
  __device__ void compute_scores(float (&s)[2][4], std::uint32_t keys, int first_token) {
    const int slice = warp * 16;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t k[4];
      load_matrices(k, keys + offset(slice + lane % 16, step * 16 + lane / 16 * 8));
      multiply_16x8<T>(s[step % 2], k, q[step][0], q[step][1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] += s[1][i];
    if (a.softcap > 0.0F) cap_scores(a, s[0]);
    if (first_token < head.full_lo || first_token + Shape::kTokens > head.full_hi) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = first_token + slice + lane / 4 + i / 2 * 8;
        if (token < row[i % 2].lo || token >= row[i % 2].hi) s[0][i] = -INFINITY;
      }
    }
    weigh(s[0]);
  }

  __device__ void add_values(const float (&s)[4], std::uint32_t values) {
    const int slice = warp * 16;
    const std::uint32_t p0 = transposed(pack<T>(s[0], s[1])), p1 = transposed(pack<T>(s[2], s[3]));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t v[4];
      load_matrices_transposed(v, values + offset(slice + lane / 16 * 8 + lane % 8, step * 16 + lane / 8 % 2 * 8));
      multiply_16x8<T>(sums[step], v, p0, p1);
    }
  }

  /// Slots of this warp's tokens behind the last that anyone sees may hold anything, as in Computer::clear_unseen.
  /// seen: of the warp's block.
  __device__ void clear_unseen(unsigned char* values, int seen) const {
    const int before = warp % 2 * 16, of_slice = seen < before ? 0 : seen > before + 16 ? 16 : seen - before;
    clear_slots<T, D>(values, warp * 16 + of_slice, 16 - of_slice, lane, 32);
    fence_stores();
    __syncwarp();
  }

  /// Scores become weights; sums follow a new maximum.
  __device__ void weigh(float (&s)[4]) {
    const float most[2] = {fmaxf(s[0], s[2]) * scale, fmaxf(s[1], s[3]) * scale};
    if (__any_sync(~0U, most[0] > max[0] || most[1] > max[1])) {
      float factor[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float m = fmaxf(max[i], most[i]);
#pragma unroll
        for (int lanes = 4; lanes < 32; lanes *= 2) m = fmaxf(m, __shfl_xor_sync(~0U, m, lanes));
        factor[i] = m == -INFINITY ? 1.0F : exp2_fast(max[i] - m);
        max[i] = m;
        sum[i] *= factor[i];
      }
#pragma unroll
      for (auto& part : sums) {
#pragma unroll
        for (int i = 0; i < 4; ++i) part[i] *= factor[i % 2];
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float base = max[i % 2] == -INFINITY ? 0.0F : max[i % 2];
      s[i] = exp2_fast(fmaf(s[i], scale, -base));
      sum[i % 2] += s[i];
    }
  }

  __device__ float* sums_of(int of_warp, int query) const {
    return shared.join_sums() + (of_warp * kSlimQueries + query) * D;
  }
  /// Where a query's dim is there.
  __device__ static int place(int query, int dim) { return dim ^ (query / 2 * 8 & kSpread); }

  /// By both groups. The barriers: nobody reads what a slim item before has left there; all is there.
  __device__ void join_and_write(std::uint32_t parity) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int lanes = 4; lanes < 32; lanes *= 2) sum[i] += __shfl_xor_sync(~0U, sum[i], lanes);
    }
    shared.slim_empty().wait(parity ^ 1);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int query = lane % 4 * 2 + i;
      float* const to = sums_of(warp, query);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        to[place(query, step * 16 + lane / 4)] = sums[step][i];
        to[place(query, step * 16 + lane / 4 + 8)] = sums[step][2 + i];
      }
      if (lane < 4) shared.join_states()[warp * kSlimQueries + query] = {max[i], sum[i]};
    }
    shared.slim_full().arrive();
    shared.slim_full().wait(parity);
    if (warp < n_queries) write(warp);
    shared.slim_empty().arrive();
  }

  __device__ void write(int query) const {
    const float2* const states = shared.join_states() + query;
    float m = -INFINITY, weights = 0.0F, factor[kComputeWarps];
#pragma unroll
    for (int w = 0; w < kComputeWarps; ++w) m = fmaxf(m, states[w * kSlimQueries].x);
    const float base = m == -INFINITY ? 0.0F : m;
#pragma unroll
    for (int w = 0; w < kComputeWarps; ++w) {
      factor[w] = exp2_fast(states[w * kSlimQueries].x - base);
      weights += states[w * kSlimQueries].y * factor[w];
    }
    const int per_row = a.n_head / a.n_kv_head;
    const ItemRow r = a.rows[head.first_row + query / per_row];
    const int h = head.kv_head * per_row + query % per_row;
    const bool final = r.slot < 0;
    const std::int64_t at = static_cast<std::int64_t>(final ? r.row : r.slot) * a.n_head + h;
    for (int dim = 4 * lane; dim < D; dim += 128) {
      float4 total = {};
#pragma unroll
      for (int w = 0; w < kComputeWarps; ++w) {
        const float4 x = *reinterpret_cast<const float4*>(sums_of(w, query) + place(query, dim));
        total.x += factor[w] * x.x;
        total.y += factor[w] * x.y;
        total.z += factor[w] * x.z;
        total.w += factor[w] * x.w;
      }
      if (final) {
        const float f = 1.0F / with_sink(a, h, m, weights);
        *reinterpret_cast<uint2*>(static_cast<T*>(a.out) + at * D + dim) = {pack<T>(total.x * f, total.y * f),
                                                                            pack<T>(total.z * f, total.w * f)};
      } else {
        *reinterpret_cast<float4*>(a.scratch.sums + at * D + dim) = total;
      }
    }
    if (!final && lane == 0) reinterpret_cast<float2*>(a.scratch.states)[at] = {m, weights};
  }
};

}  // namespace coppice::attention::cuda
