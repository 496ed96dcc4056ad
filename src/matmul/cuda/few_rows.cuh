// Products of up to 16 rows in bf16, on any GPU, which are bound by reading the weights.
//
// The warps of a thread block share tiles of 16 outputs, and take turns at the stages of 256 inputs. Weights and rows
// of a stage come through a ring in shared memory of the warp's own, so warps wait for nothing but their copies. The
// first weights are on their way before the launch in front has ended (programmatic dependent launch), since nothing on
// the device writes them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/launch.cuh"
#include "cuda/warp_product.cuh"
#include "matmul/cuda/byte_parts.cuh"
#include "matmul/cuda/gated_unit.cuh"
#include "matmul/cuda/quant_product.h"
#include "matmul/cuda/tile_weights.cuh"
#include "matmul/cuda/unpack.cuh"

namespace coppice::matmul::cuda {

inline constexpr int kMostWarps = 16;
inline constexpr int kStages = 2;
inline constexpr int kRowBytes = kStageInputs * 2 + 16;  ///< of x in a stage; 16 more, or rows share banks

constexpr int stage_bytes(QuantType type, int tiles, int n_rows) {
  return tiles * stage_weights(type) + n_rows * kRowBytes;
}

template <QuantType kType, int kTiles, int kRowTiles>
struct Multiplier {
  static constexpr bool kAdds = kType == QuantType::kQ4K || kType == QuantType::kQ5K;
  static constexpr bool kBy16 = kType == QuantType::kQ6K;
  static constexpr ChunkForm kForm = chunk_form(kType);
  using Scales = StageScales<kType>;
  const QuantProduct& p;
  unsigned char* ring;  ///< of this warp
  int first_tile, warp, lane;
  int n_tiles = (p.n_out + kTileOutputs - 1) / kTileOutputs;
  int n_stages = (p.n_in + kStageInputs - 1) / kStageInputs;
  int bytes = stage_bytes(kType, kTiles, p.n_rows);
  float sums[kTiles][kRowTiles][4] = {};

  __device__ void fetch_weights(int stage, int slot) const {
    if (stage >= n_stages) return;
    const int pieces = min(kStageInputs, p.n_in - stage * kStageInputs) / kForm.inputs * kForm.bytes() / 16;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      unsigned char* to = ring + slot * bytes + tile * stage_weights(kType);
      const std::byte* from = p.weights +
                              static_cast<std::size_t>(min(first_tile + tile, n_tiles - 1)) *
                                  static_cast<std::size_t>(p.n_in / kForm.inputs * kForm.bytes()) +
                              static_cast<std::size_t>(stage) * stage_weights(kType);
      for (int i = lane; i < pieces; i += 32) copy_16(shared_address(to + 16 * i), from + 16 * i);
    }
  }
  __device__ void fetch_rows(int stage, int slot) const {
    if (stage >= n_stages || stage * kStageInputs + 8 * lane >= p.n_in) return;
    unsigned char* to = ring + slot * bytes + kTiles * stage_weights(kType) + 16 * lane;
    const auto* x = static_cast<const std::byte*>(p.x) + static_cast<std::size_t>(stage * kStageInputs + 8 * lane) * 2;
    for (int row = 0; row < p.n_rows; ++row)
      copy_16(shared_address(to + row * kRowBytes), x + static_cast<std::size_t>(row) * p.n_in * 2);
  }

  /// Of 16 inputs of an output what sums are multiplied by, and for each 32 what the sum of x is: m * t, less what
  /// weights are too large.
  template <int kQuarter, int i>
  __device__ __forceinline__ void scales_of(const Scales& scales, const unsigned char* chunks, int quarter, int upper,
                                            float (&s)[4][2], float (&t)[2][2]) const {
    if constexpr (kType == QuantType::kBf16) {
      s[i][upper] = 1.0F;
    } else {
      const float2 of = scales.template of<kQuarter, i>(chunks, quarter, lane, upper);
      s[i][upper] = of.x;
      if constexpr (kAdds) t[i / 2][upper] = of.y;
    }
  }

  /// 64 inputs. kQuarter: which quarter, where a stage's scales are kept.
  template <int kQuarter>
  __device__ __forceinline__ void compute(const Scales (&scales)[kTiles], const unsigned char* stage, int quarter) {
    const unsigned char* rows = stage + kTiles * stage_weights(kType) + quarter * 128 + lane / 8 * 16;
    uint2 x[kRowTiles][4];
    float x_sums[kRowTiles][2][4] = {};
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      // A lane says where a row's 16 bytes are; those of rows that aren't there are another's, and their results are
      // not written.
      const std::uint32_t from = shared_address(rows + min(lane % 8 + 8 * r, p.n_rows - 1) * kRowBytes);
      std::uint32_t words[2][4];
      load_matrices(words[0], from);
      load_matrices(words[1], from + 64);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[r][i] = {words[i / 2][i % 2 * 2], words[i / 2][i % 2 * 2 + 1]};
        constexpr std::uint32_t kOnes[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
        if constexpr (kAdds) multiply_16x8<__nv_bfloat16>(x_sums[r][i / 2], kOnes, x[r][i].x, x[r][i].y);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const unsigned char* chunks = stage + tile * stage_weights(kType);
      std::uint32_t a[4][4];
      float s[4][2] = {}, t[2][2] = {};
      unpack<kType>(chunks, quarter, lane, a);
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        scales_of<kQuarter, 0>(scales[tile], chunks, quarter, upper, s, t);
        scales_of<kQuarter, 1>(scales[tile], chunks, quarter, upper, s, t);
        scales_of<kQuarter, 2>(scales[tile], chunks, quarter, upper, s, t);
        scales_of<kQuarter, 3>(scales[tile], chunks, quarter, upper, s, t);
      }
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        constexpr int kAtOnce = kBy16 ? 1 : 2;
#pragma unroll
        for (int i = 0; i < 4; i += kAtOnce) {
          float part[4] = {};
#pragma unroll
          for (int k = i; k < i + kAtOnce; ++k) multiply_16x8<__nv_bfloat16>(part, a[k], x[r][k].x, x[r][k].y);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sums[tile][r][e] += s[i][e / 2] * part[e];
            if constexpr (kAdds) sums[tile][r][e] += t[i / 2][e / 2] * x_sums[r][i / 2][e];
          }
        }
      }
    }
  }

  __device__ __forceinline__ void compute_stage(const unsigned char* stage, int n_inputs) {
    Scales scales[kTiles];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) scales[tile].read(stage + tile * stage_weights(kType), lane);
    if constexpr (kForm.inputs == kStageInputs) {
      compute<0>(scales, stage, 0);
      compute<1>(scales, stage, 1);
      compute<2>(scales, stage, 2);
      compute<3>(scales, stage, 3);
    } else {
#pragma unroll 4
      for (int quarter = 0; quarter < n_inputs / 64; ++quarter) compute<0>(scales, stage, quarter);
    }
  }

  __device__ void run(int n_warps) {
    fetch_weights(warp, 0);
    wait_for_launch_before();
    fetch_rows(warp, 0);
    commit_copies();
    int slot = 0;
    for (int stage = warp; stage < n_stages; stage += n_warps, slot ^= 1) {
      fetch_weights(stage + n_warps, slot ^ 1);
      fetch_rows(stage + n_warps, slot ^ 1);
      commit_copies();
      wait_for_copies<1>();
      __syncwarp();
      compute_stage(ring + slot * bytes, min(kStageInputs, p.n_in - stage * kStageInputs));
      __syncwarp();
    }
    wait_for_copies<0>();
  }
};

/// A thread block's two tiles. memory: n_warps * few_rows_bytes() of it, shared.
template <QuantType kType, int kTiles, int kRowTiles, bool kGated>
__device__ void multiply_few(const QuantProduct& p, unsigned char* memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int n_warps = static_cast<int>(blockDim.x) / 32;
  const int bytes = kStages * stage_bytes(kType, kTiles, p.n_rows);
  Multiplier<kType, kTiles, kRowTiles> m{p, memory + warp * bytes, static_cast<int>(blockIdx.x) * kTiles, warp, lane};
  m.run(n_warps);
  // The warps' sums, added in their order. Of a tile a lane has two neighbouring rows of two outputs.
  __syncthreads();
  auto* parts = reinterpret_cast<float*>(memory);
  constexpr int kSums = kTiles * kRowTiles * 4 * 32;
#pragma unroll
  for (int i = 0; i < kSums / 32; ++i)
    parts[warp * kSums + i * 32 + lane] = m.sums[i / 4 / kRowTiles][i / 4 % kRowTiles][i % 4];
  __syncthreads();
  const auto sum_at = [&](int at) {
    float sum = 0.0F;
    for (int w = 0; w < n_warps; ++w) sum += parts[w * kSums + at];
    return sum;
  };
  for (int at = static_cast<int>(threadIdx.x); at < kSums; at += static_cast<int>(blockDim.x)) {
    const int from = at % 32, i = at / 32, tile = i / 4 / kRowTiles;
    const int row = i / 4 % kRowTiles * 8 + from % 4 * 2 + i % 2;
    const int out = (static_cast<int>(blockIdx.x) * kTiles + tile) * kTileOutputs + from / 4 + i % 4 / 2 * 8;
    if constexpr (kGated) {
      if (i % 4 / 2 == 0 && row < p.n_rows && out < p.n_out)  // up's sum is two of the lane's on
        write_gated(p, row, out / kTileOutputs * kTilePairs + from / 4, sum_at(at), sum_at(at + 64));
    } else {
      const float sum = sum_at(at);
      if (row < p.n_rows && out < p.n_out) p.y[static_cast<std::size_t>(row) * p.n_out + out] = sum;
    }
  }
}

/// Of a warp, for up to n_rows rows.
template <QuantType kType, int kTiles, int kRowTiles>
constexpr int few_rows_bytes(int n_rows) {
  return std::max(kStages * stage_bytes(kType, kTiles, n_rows), kTiles * kRowTiles * 4 * 32 * 4);
}

/// Of a thread block: all of them shall run at once if they can, with about 16 warps on a multiprocessor.
inline int choose_warps(const Gpu& gpu, int n_blocks, int n_stages, int bytes_of_warp) {
  const int together = std::min(4, (n_blocks + gpu.n_multiprocessors() - 1) / gpu.n_multiprocessors());
  const int fit = gpu.shared_bytes() / together / bytes_of_warp;
  return std::max(1, std::min({kMostWarps / together, fit, n_stages}));
}

}  // namespace coppice::matmul::cuda
