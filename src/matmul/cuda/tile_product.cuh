// Products of many rows on Hopper GPUs: weights become bf16 numbers in registers, A of a warpgroup's product of 64
// outputs; rows are B in shared memory.
//
// Two warps of a third warpgroup fetch: one brings packed weights (bulk copies; before the launch in front has ended,
// as nothing on the device writes them), one brings rows (64 inputs of a tile's rows at a time, by a tensor map).
// Warpgroups compute: while the tensor cores multiply 64 inputs, the warps unpack the next ones.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/barrier.cuh"
#include "cuda/group_product.cuh"
#include "cuda/launch.cuh"
#include "matmul/cuda/gated_unit.cuh"
#include "matmul/cuda/part_product.h"
#include "matmul/cuda/tile_walk.h"
#include "matmul/cuda/tile_weights.cuh"

namespace coppice::matmul::cuda {

inline constexpr int kTileGroups = 2;                 ///< warpgroups that compute
inline constexpr int kTileHeight = 64 * kTileGroups;  ///< outputs
inline constexpr int kTileThreads = 128 * (kTileGroups + 1);

/// Thread blocks of a multiprocessor; of tiles with many rows one fills it.
constexpr int tile_blocks(int rows) {
  return rows <= 64 ? 2 : 1;
}

template <QuantType kType, int kRows>
struct TileForm {
  static constexpr ChunkForm kForm = chunk_form(kType);
  /// Inputs, and bytes of 16 outputs.
  static constexpr int kStage = kType == QuantType::kBf16 || kType == QuantType::kQ8_0 ? 128 : 256;
  static constexpr int kPieceBytes = kStage / kForm.inputs * kForm.bytes(), kPieces = kTileHeight / 16;
  static constexpr int kWeightBytes = kPieces * kPieceBytes;
  static constexpr int kRowBytes = kRows * 128;  ///< of 64 inputs of all rows
  static constexpr int bytes(int weight_slots, int row_slots) {
    return 1024 + row_slots * kRowBytes + weight_slots * kWeightBytes + 16 * (weight_slots + row_slots);
  }
};

/// How a kernel is launched.
struct TileLaunch {
  TileGrid grid;  ///< with parts: what of it is known on the host
  int weight_slots, row_slots;
  PartRows parts;  ///< panels of these are row tiles

  /// On the device the number of panels is known.
  __device__ void complete(int n_blocks) {
    grid.n_row_tiles = *parts.n_panels;
    grid.n_tiles *= grid.n_row_tiles;
    grid.share(n_blocks, n_blocks);
  }
  /// The rows of a tile of kRows.
  template <int kRows, bool kParts>
  __device__ RowPanel rows_of(int tile, int n_rows) const {
    if constexpr (kParts) return parts.panels[tile % grid.n_row_tiles];
    const int first = tile % grid.n_row_tiles * kRows;
    return {0, first, n_rows - first};
  }
};

/// One thread block's rings; what is fetched and what is computed go through them in the same order.
template <QuantType kType, int kRows>
struct TileRings {
  using Form = TileForm<kType, kRows>;
  std::uint32_t rows, weights, barriers;  ///< addresses
  unsigned char* weights_at;
  int weight_slots, row_slots;

  __device__ TileRings(unsigned char* memory, const TileLaunch& launch)
      : weight_slots(launch.weight_slots), row_slots(launch.row_slots) {
    unsigned char* aligned = memory + (-shared_address(memory) & 1023);  // as the swizzle wants it
    rows = shared_address(aligned);
    weights_at = aligned + row_slots * Form::kRowBytes;
    weights = shared_address(weights_at);
    barriers = weights + static_cast<std::uint32_t>(weight_slots * Form::kWeightBytes);
  }
  __device__ Barrier barrier(int i) const { return {barriers + 8 * static_cast<std::uint32_t>(i)}; }
  __device__ Barrier weights_full(int slot) const { return barrier(2 * slot); }
  __device__ Barrier weights_empty(int slot) const { return barrier(2 * slot + 1); }
  __device__ Barrier rows_full(int slot) const { return barrier(2 * (weight_slots + slot)); }
  __device__ Barrier rows_empty(int slot) const { return barrier(2 * (weight_slots + slot) + 1); }
  __device__ void init() const {
    for (int i = 0; i < weight_slots; ++i) {
      weights_full(i).init(1);
      weights_empty(i).init(128 * kTileGroups);
    }
    for (int i = 0; i < row_slots; ++i) {
      rows_full(i).init(1);
      rows_empty(i).init(kTileGroups);
    }
    fence_barriers();
  }
};

/// A slot of a ring and the parity of its phase.
struct RingPlace {
  int slot = 0;
  std::uint32_t parity = 0;
  __device__ void advance(int n_slots) {
    if (++slot < n_slots) return;
    slot = 0;
    parity ^= 1;
  }
};

template <QuantType kType, int kRows, bool kParts>
struct TileFetcher {
  using Form = TileForm<kType, kRows>;
  const QuantProduct& p;
  const TileLaunch& launch;
  const TileRings<kType, kRows>& rings;

  /// By a warp: lane i brings the stage of 16 outputs. Outputs behind the last are the last ones again.
  __device__ void run_weights(int lane) const {
    const int tile_bytes = p.n_in / Form::kForm.inputs * Form::kForm.bytes();
    const int last = (p.n_out + kTileOutputs - 1) / kTileOutputs - 1;
    TileWalk walk(launch.grid, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    RingPlace at;
    for (Segment s; walk.next(s);) {
      const int piece = min(s.tile / launch.grid.n_row_tiles * Form::kPieces + lane, last);
      const std::byte* from = p.weights + static_cast<std::size_t>(piece) * static_cast<std::size_t>(tile_bytes);
      if constexpr (kParts) from += launch.rows_of<kRows, true>(s.tile, p.n_rows).part * launch.parts.part_bytes;
      for (int stage = s.first; stage < s.end; ++stage, at.advance(rings.weight_slots)) {
        const int bytes = min(Form::kPieceBytes, tile_bytes - stage * Form::kPieceBytes);
        const Barrier full = rings.weights_full(at.slot);
        rings.weights_empty(at.slot).wait(at.parity ^ 1);
        if (lane == 0) full.arrive_expecting(bytes * Form::kPieces);
        __syncwarp();
        if (lane < Form::kPieces) {
          bulk_copy(rings.weights + static_cast<std::uint32_t>(at.slot * Form::kWeightBytes + lane * Form::kPieceBytes),
                    from + static_cast<std::size_t>(stage) * Form::kPieceBytes, bytes, full);
        }
      }
    }
  }

  /// By one thread. 64 inputs behind the last are zeros.
  __device__ void run_rows(const CUtensorMap& map) const {
    TileWalk walk(launch.grid, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    RingPlace at;
    for (Segment s; walk.next(s);) {
      const int row = launch.rows_of<kRows, kParts>(s.tile, p.n_rows).first;
      const int end = min(s.end * Form::kStage, (p.n_in + 127) / 128 * 128);
      for (int input = s.first * Form::kStage; input < end; input += 64, at.advance(rings.row_slots)) {
        const Barrier full = rings.rows_full(at.slot);
        rings.rows_empty(at.slot).wait(at.parity ^ 1);
        full.arrive_expecting(Form::kRowBytes);
        copy_box(rings.rows + static_cast<std::uint32_t>(at.slot * Form::kRowBytes), &map, input, row, full);
      }
    }
  }
};

/// A thread of a computing warpgroup.
template <QuantType kType, int kRows, bool kParts, bool kGated>
struct TileMultiplier {
  using Form = TileForm<kType, kRows>;
  static constexpr int kSums = kRows / 2;  ///< of a lane: [8 rows][2 outputs][2 rows]
  const QuantProduct& p;
  const TileLaunch& launch;
  const TileRings<kType, kRows>& rings;
  int group, warp, lane;
  RingPlace weights = {}, rows = {};
  int busy_slot = -1;  ///< of rows that the tensor cores may still read
  float sums[kSums] = {};
  std::uint32_t a[2][4][4] = {};

  /// 64 inputs: unpacks their weights while the ones before are multiplied, then has them multiplied.
  template <int kQuarter>
  __device__ __forceinline__ void step(const StageScales<kType>& scales, const unsigned char* stage, int quarter,
                                       int add) {
    std::uint32_t(&numbers)[4][4] = a[kQuarter % 2];
    scales.template unpack<kQuarter>(stage, quarter, lane, numbers);
    rings.rows_full(rows.slot).wait(rows.parity);
    const std::uint64_t b = describe<128>(rings.rows + static_cast<std::uint32_t>(rows.slot * Form::kRowBytes));
    begin_products();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      multiply<__nv_bfloat16, false>(sums, numbers[i], b + static_cast<std::uint64_t>(2 * i), i == 0 ? add : 1);
    commit_products();
    wait_for_products<1>();
    release_rows();
    busy_slot = rows.slot;
    rows.advance(rings.row_slots);
  }
  __device__ __forceinline__ void release_rows() {
    if (busy_slot >= 0 && warp == 0 && lane == 0) rings.rows_empty(busy_slot).arrive();
  }

  __device__ __forceinline__ void compute(const Segment& s) {
    int add = 0;
    for (int stage = s.first; stage < s.end; ++stage) {
      rings.weights_full(weights.slot).wait(weights.parity);
      const unsigned char* mine =
          rings.weights_at + weights.slot * Form::kWeightBytes + (group * 4 + warp) * Form::kPieceBytes;
      StageScales<kType> scales;
      scales.read(mine, lane);
      if constexpr (Form::kForm.inputs == 256) {
        step<0>(scales, mine, 0, add);
        step<1>(scales, mine, 1, 1);
        step<2>(scales, mine, 2, 1);
        step<3>(scales, mine, 3, 1);
      } else {  // behind the last inputs are zeros, times the last quarter again
        const int quarters = min(Form::kStage, p.n_in - stage * Form::kStage) / 64;
#pragma unroll 1
        for (int quarter = 0; quarter < quarters; quarter += 2) {
          step<0>(scales, mine, quarter, quarter == 0 ? add : 1);
          step<1>(scales, mine, min(quarter + 1, quarters - 1), 1);
        }
      }
      add = 1;
      rings.weights_empty(weights.slot).arrive();
      weights.advance(rings.weight_slots);
    }
    wait_for_products<0>();
    release_rows();
    busy_slot = -1;
  }

  __device__ float4* part_of(int block) const {
    return reinterpret_cast<float4*>(p.scratch.sums) + block * (kTileHeight * kRows / 4) + group * 128 + warp * 32 +
           lane;
  }
  /// Of a tile whose first stages another block has.
  __device__ __forceinline__ void put_part() const {
    float4* to = part_of(static_cast<int>(blockIdx.x));
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i)
      to[i * 128 * kTileGroups] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
    __threadfence();
    sync_named(1, 128 * kTileGroups);
    if (threadIdx.x == 0)
      asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p.scratch.flags + blockIdx.x), "r"(1) : "memory");
  }
  /// Adds what other blocks have of a tile, in their order.
  __device__ __forceinline__ void add_parts(const Segment& s) {
    const int first = static_cast<int>(blockIdx.x) + 1;
    const int last = launch.grid.last_with(s.tile, first, static_cast<int>(gridDim.x));
    for (int block = first + static_cast<int>(threadIdx.x); block <= last; block += 128 * kTileGroups) {
      std::uint32_t ready = 0;
      while (ready == 0)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(ready) : "l"(p.scratch.flags + block) : "memory");
      p.scratch.flags[block] = 0;  // for the next launch
    }
    sync_named(1, 128 * kTileGroups);
    constexpr int kAtOnce = kSums <= 32 ? 32 / kSums : 1;  // parts on their way together
    for (int block = first; block <= last; block += kAtOnce) {
      float4 part[kAtOnce][kSums / 4];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const float4* from = part_of(min(block + k, last));
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) part[k][i] = __ldcg(from + i * 128 * kTileGroups);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (block + k > last) break;
#pragma unroll
        for (int i = 0; i < kSums / 4; ++i) {
          sums[4 * i] += part[k][i].x;
          sums[4 * i + 1] += part[k][i].y;
          sums[4 * i + 2] += part[k][i].z;
          sums[4 * i + 3] += part[k][i].w;
        }
      }
    }
  }

  __device__ __forceinline__ void write(const Segment& s) const {
    // A tile's blocks follow each other: each has a slice.
    float* y = p.y + static_cast<std::size_t>(static_cast<int>(blockIdx.x) % p.n_slices * p.n_rows) * p.n_out;
    const RowPanel rows_of_tile = launch.rows_of<kRows, kParts>(s.tile, p.n_rows);
    const int first_row = rows_of_tile.first + lane % 4 * 2, end_row = rows_of_tile.first + rows_of_tile.n;
    const int first_out = s.tile / launch.grid.n_row_tiles * kTileHeight + group * 64 + warp * 16 + lane / 4;
    if constexpr (kGated) {
      write_gated(first_row, end_row, (first_out - lane / 4) / 2 + lane / 4);
    } else {
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
        const int row = first_row + i / 4 * 8 + i % 2, out = first_out + i % 4 / 2 * 8;
        if (row < end_row && out < p.n_out) y[static_cast<std::size_t>(row) * p.n_out + out] = sums[i];
      }
    }
  }

  /// A lane has an output of two neighbouring rows, and writes two outputs of one of them: the lane with the other
  /// output has the other row.
  __device__ __forceinline__ void write_gated(int first_row, int end_row, int output) const {
    if (output >= p.n_out / 2) return;  // as the warp's other lanes
    const GatedUnit unit(p.gated, output);
    const int upper = lane / 4 % 2, row = first_row + upper;
    const auto n_words = static_cast<unsigned>(p.n_out / 4);
    std::uint32_t* to = static_cast<std::uint32_t*>(p.gated.out) + static_cast<std::size_t>(row) * n_words + output / 2;
    std::uint32_t words[kSums / 4];
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const float here = unit(sums[i], sums[i + 2]), there = unit(sums[i + 1], sums[i + 3]);
      const float others = __shfl_xor_sync(~0U, upper == 0 ? there : here, 4);
      words[i / 4] = upper == 0 ? coppice::cuda::pack<__nv_bfloat16>(here, others)
                                : coppice::cuda::pack<__nv_bfloat16>(others, there);
    }
#pragma unroll
    for (unsigned i = 0; i < kSums / 4; ++i) {
      if (row + 8 * static_cast<int>(i) < end_row) to[8 * i * n_words] = words[i];
    }
  }

  __device__ void run() {
    TileWalk walk(launch.grid, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    for (Segment s; walk.next(s);) {
      compute(s);
      if (s.first > 0 && p.n_slices == 1) {
        put_part();
      } else {
        if (s.end < launch.grid.n_stages && p.n_slices == 1) add_parts(s);
        write(s);
      }
    }
  }
};

template <QuantType kType, int kRows, bool kParts, bool kGated>
__global__ __launch_bounds__(kTileThreads,
                             tile_blocks(kRows)) void multiply_tiles(const QuantProduct p, const TileLaunch of_host,
                                                                     const __grid_constant__ CUtensorMap map) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char memory[];
  TileLaunch launch = of_host;
  const TileRings<kType, kRows> rings(memory, launch);
  if (threadIdx.x == 0) rings.init();
  __syncthreads();
  allow_next_launch();
  if constexpr (kParts) {
    wait_for_launch_before();
    launch.complete(static_cast<int>(gridDim.x));
  }
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const TileFetcher<kType, kRows, kParts> fetcher{p, launch, rings};
  if (warp >= 4 * kTileGroups) {
    shrink_registers<24>();
    if (warp == 4 * kTileGroups) {
      fetcher.run_weights(lane);
    } else if (warp == 4 * kTileGroups + 1 && lane == 0) {
      prefetch_map(&map);
      wait_for_launch_before();
      fetcher.run_rows(map);
    }
  } else {
    grow_registers<tile_blocks(kRows) == 1 ? 240 : 104>();  // what the fetching ones gave, and no more
    wait_for_launch_before();
    TileMultiplier<kType, kRows, kParts, kGated>{p, launch, rings, warp / 4, warp % 4, lane}.run();
  }
#endif
}

}  // namespace coppice::matmul::cuda
