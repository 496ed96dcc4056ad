// Products of a few rows on Hopper GPUs, in whole numbers.
//
// A row of x becomes, chunk by chunk of 256 inputs, 23-bit fixed point numbers: three signed bytes, "digits". Each
// digit of each row is a column of B for the tensor cores' products of bytes, and the weights are A as they come out of
// their packing: a few logical operations for four. Sums over 16 or 32 inputs meet their scales as whole numbers, too,
// where a type has such. What a type adds (minima, zeros) is one more product, with the digits' sums.
//
// Weights stream: a thread block has some tiles of 16 outputs, whose stages of 256 inputs its warps take in turn,
// across tiles. Each warp has a ring of its own, filled by bulk copies, and waits for nothing but those. Its part of a
// tile goes to shared memory, where a warp adds those of all, in order, one tile later. The rings are full before the
// launch in front has ended.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/launch.cuh"
#include "matmul/cuda/byte_parts.cuh"
#include "matmul/cuda/gated_unit.cuh"
#include "matmul/cuda/quant_product.h"
#include "matmul/cuda/unpack.cuh"

namespace coppice::matmul::cuda {

/// Rows 2 i and 2 i + 1 make row tile i: columns 4 (row % 2) + digit; the fourth column of a row is not looked at.
template <QuantType kType, int kRowTiles>
struct ByteMultiplier {
  static constexpr ChunkForm kForm = chunk_form(kType);
  static constexpr bool kSuper = kForm.inputs == kStageInputs, kBy16 = kType == QuantType::kQ6K;
  static constexpr int kStageBytes = stage_weights(kType), kRowBytes = DigitForm::bytes(kType),
                       kSumBytes = DigitForm::sum_bytes(kType);
  static constexpr int kPartSums = kRowTiles * 32;  ///< of a warp and a tile: [rows][16 outputs]
  const QuantProduct& p;
  unsigned char* memory;
  int n_slots, n_warps, warp, lane;
  int first_tile, end_tile;
  int n_chunks = (p.n_in + kStageInputs - 1) / kStageInputs;
  ByteLayout at = ByteLayout::of(kType, p.n_rows, kRowTiles, n_chunks, n_warps, n_slots);
  unsigned char* ring = memory + warp * n_slots * kStageBytes;
  int tile_bytes = p.n_in / kForm.inputs * kForm.bytes();
  int fetch_tile = first_tile, fetch_stage = warp, fetch_slot = 0;  ///< what is fetched next
  const std::byte* fetch_from =
      p.weights + static_cast<std::size_t>(first_tile) * static_cast<std::size_t>(tile_bytes) + warp * kStageBytes;
  int slot = 0;  ///< of the stage in hand
  std::uint32_t parity = 0;
  float sums[kRowTiles][4] = {};

  __device__ Barrier barrier(int i) const {
    return {shared_address(memory + at.barriers) + 8 * static_cast<std::uint32_t>(i)};
  }
  __device__ Barrier full(int of_slot) const { return barrier(2 * kParts + warp * n_slots + of_slot); }
  __device__ Barrier parts_full(int tile) const { return barrier(tile % kParts); }
  __device__ Barrier parts_empty(int tile) const { return barrier(kParts + tile % kParts); }
  __device__ float* parts(int tile, int of_warp) const {
    return reinterpret_cast<float*>(memory + at.parts) + (tile % kParts * n_warps + of_warp) * kPartSums;
  }

  /// By warp 0 for all, and each for its ring. A barrier of the thread block must follow before any but ring's are
  /// used.
  __device__ void init() const {
    if (lane == 0) {
      for (int i = 0; i < n_slots; ++i) full(i).init(1);
      for (int i = 0; i < kParts && warp == 0; ++i) {
        barrier(i).init(32 * n_warps);
        barrier(kParts + i).init(32);
      }
      fence_barriers();
    }
    __syncwarp();
  }

  /// The warp's next stage into its next slot, which nobody reads any more.
  __device__ void fetch() {
    for (; fetch_stage >= n_chunks; fetch_stage -= n_chunks) {
      ++fetch_tile;
      fetch_from += tile_bytes - n_chunks * kStageBytes;
    }
    if (fetch_tile >= end_tile) return;
    if (lane == 0) {
      const int bytes = kSuper ? kStageBytes : min(kStageBytes, tile_bytes - fetch_stage * kStageBytes);
      const Barrier done = full(fetch_slot);
      done.arrive_expecting(bytes);
      bulk_copy(shared_address(ring) + static_cast<std::uint32_t>(fetch_slot * kStageBytes), fetch_from, bytes, done);
    }
    fetch_stage += n_warps;
    fetch_from += n_warps * kStageBytes;
    if (++fetch_slot == n_slots) fetch_slot = 0;
  }

  __device__ unsigned char* digits_of(int row, int chunk) const {
    return memory + at.digits + (row * n_chunks + chunk) * kRowBytes;
  }

  /// The digits of the row that a lane's two columns belong to.
  __device__ unsigned char* row_of_columns(int row_tile, int t, int chunk) const {
    return digits_of(min(2 * row_tile + t / 2, p.n_rows - 1), chunk);
  }

  /// A lane's eight inputs of a row's chunk.
  __device__ uint4 read_row(int row, int chunk) const {
    const int first = chunk * kStageInputs + 8 * lane;
    if (row >= p.n_rows || first >= p.n_in) return {};
    return *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(p.x) +
                                           static_cast<std::size_t>(row) * p.n_in + first);
  }
  /// All rows as digits, by all warps. Several reads are on their way together.
  __device__ void make_all_digits() const {
    constexpr int kAtOnce = 4;
    const int n = p.n_rows * n_chunks;
    for (int first = warp; first < n; first += kAtOnce * n_warps) {
      uint4 x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at_x = first + i * n_warps;
        x[i] = read_row(at_x / n_chunks, at_x % n_chunks);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at_x = first + i * n_warps;
        if (at_x < n) make_digits(x[i], digits_of(at_x / n_chunks, at_x % n_chunks));
      }
    }
  }

  /// One chunk of a row as digits. A lane has eight inputs, half of the 16 of which four lanes' words have four each,
  /// and makes two of these words: it gives its neighbour, which has the other half, what is not in them.
  __device__ void make_digits(const uint4& x, unsigned char* to) const {
    const bool is_upper = lane % 2 != 0;
    const std::uint32_t other[2] = {__shfl_xor_sync(~0U, is_upper ? x.x : x.z, 1),
                                    __shfl_xor_sync(~0U, is_upper ? x.y : x.w, 1)};
    const std::uint32_t words[4] = {is_upper ? other[0] : x.x, is_upper ? x.z : other[0], is_upper ? other[1] : x.y,
                                    is_upper ? x.w : other[1]};
    std::uint32_t most = 0;
#pragma unroll
    for (const std::uint32_t w : words) most = max(most, max(w & 0x7fff, w >> 16 & 0x7fff));
    most = __reduce_max_sync(~0U, most);
    // The largest value's exponent, so that it becomes 2^21 to 2^22. Rounded as the last bits of a large float.
    const std::uint32_t exponent = max(most >> 7, 22U);
    const float scale = __uint_as_float((275U - exponent) << 23);
    std::uint32_t v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float f = __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000);
      v[i] = (__float_as_uint(fmaf(f, scale, 12582912.0F)) - 0x4b400000U + 0x808080U) ^ 0x808080U;
    }
    int digit_sums[3] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::uint32_t* u = v + 4 * half;
      const std::uint32_t ab = __byte_perm(u[0], u[1], 0x5140), cd = __byte_perm(u[2], u[3], 0x5140);
      const std::uint32_t digit[3] = {
          __byte_perm(ab, cd, 0x5410), __byte_perm(ab, cd, 0x7632),
          __byte_perm(__byte_perm(u[0], u[1], 0x0062), __byte_perm(u[2], u[3], 0x0062), 0x5410)};
#pragma unroll
      for (int d = 0; d < 3; ++d) {
        *reinterpret_cast<std::uint32_t*>(to + word_at(d, lane / 8) + (lane % 2 * 2 + half) * 16 + lane % 8 / 2 * 4) =
            digit[d];
        digit_sums[d] = __dp4a(static_cast<int>(digit[d]), 0x01010101, digit_sums[d]);
      }
    }
    if constexpr (kSumBytes > 0) {
      constexpr int kLanes = kBy16 ? 2 : 4;  // that have a sum's inputs
#pragma unroll
      for (int d = 0; d < 3; ++d) {
#pragma unroll
        for (int i = 1; i < kLanes; i *= 2) digit_sums[d] += __shfl_xor_sync(~0U, digit_sums[d], i);
        if (lane % kLanes == 0) {
          const int block = lane / kLanes;
          unsigned char* sum = to + DigitForm::kSumsAt + d * kSumBytes + block / 4 * 8 + block % 4;
          sum[0] = static_cast<unsigned char>(digit_sums[d] & 63);
          sum[4] = static_cast<unsigned char>(digit_sums[d] >> 6);
        }
      }
    }
    if (lane == 0)
      *reinterpret_cast<float*>(to + DigitForm::scale_at(kType)) =
          exponent == 255 ? __uint_as_float(0x7fc00000) : __uint_as_float((exponent - 21U) << 23);
  }
  /// Of a digit's 64 bytes; those of the middle digit change places in pairs, or the digits' lanes meet in the same
  /// banks.
  __device__ static int word_at(int digit, int quarter) {
    return digit * DigitForm::kDigitBytes + ((quarter ^ (digit & 1)) * 64);
  }

  /// A lane's two outputs and two columns of a chunk, all row tiles.
  __device__ void compute(const unsigned char* stage, int chunk) {
    const int column = lane / 4, t = lane % 4, digit = min(column % 4, 2);
    const unsigned char* x[kRowTiles];
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) x[r] = digits_of(min(2 * r + column / 4, p.n_rows - 1), chunk);
    float part[kRowTiles][4] = {};
    if constexpr (kSuper) {
      compute_whole(part, stage, x, digit, t);
    } else {
      const int quarters = min(kStageInputs, p.n_in - chunk * kStageInputs) / 64;
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        if (quarter < quarters) compute_quarter(part, stage, x, digit, t, quarter);
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const float scale = *reinterpret_cast<const float*>(row_of_columns(r, t, chunk) + DigitForm::scale_at(kType));
#pragma unroll
      for (int e = 0; e < 4; ++e) sums[r][e] = fmaf(part[r][e], scale, sums[r][e]);
    }
  }

  __device__ static uint4 digits_at(const unsigned char* x, int digit, int t, int quarter) {
    return *reinterpret_cast<const uint4*>(x + word_at(digit, quarter) + t * 16);
  }

  /// Types whose scales are f16 of 32 inputs.
  __device__ void compute_quarter(float (&part)[kRowTiles][4], const unsigned char* stage,
                                  const unsigned char* (&x)[kRowTiles], int digit, int t, int quarter) const {
    std::uint32_t a[2][4];
    read_bytes<kType, true>(stage, quarter, lane, a);
    const unsigned char* deltas = stage + quarter * kForm.bytes() + kForm.deltas_at();
    constexpr float kFactor = kType == QuantType::kQ4_0 ? 1.0F / 16 : 1.0F;
    float d[2][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at_d = i / 2 * 16 + i % 2 * 8 + lane / 4;
      d[i / 2][i % 2] = kFactor * __half2float(reinterpret_cast<const __half*>(deltas)[at_d]);
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const uint4 b = digits_at(x[r], digit, t, quarter);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        constexpr int kLarge = 0x4b400000;  // a float whose last bits are the sum
        int sum[4];
        multiply_bytes(sum, a[block], block == 0 ? b.x : b.z, block == 0 ? b.y : b.w, kLarge);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          part[r][e] = fmaf(d[block][e / 2], __int_as_float(sum[e]) - 12582912.0F, part[r][e]);
      }
    }
  }

  /// Types whose scales are whole numbers below one of 256 inputs.
  __device__ void compute_whole(float (&part)[kRowTiles][4], const unsigned char* stage,
                                const unsigned char* (&x)[kRowTiles], int digit, int t) const {
    constexpr int kWords = kBy16 ? 4 : 2;
    const unsigned char* scales = stage + kForm.scales_at() + lane / 4 * 16;
    std::uint32_t s[2][kWords];
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i)
      s[i / kWords][i % kWords] = reinterpret_cast<const std::uint32_t*>(scales + i / kWords * 128)[i % kWords];
    int whole[kRowTiles][4] = {};
#pragma unroll
    for (int quarter = 0; quarter < 4; ++quarter) {
      std::uint32_t a[2][4];
      read_bytes<kType>(stage, quarter, lane, a);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const uint4 digits = digits_at(x[r], digit, t, quarter);
        const std::uint32_t b[4] = {digits.x, digits.y, digits.z, digits.w};
#pragma unroll
        for (int i = 0; i < (kBy16 ? 4 : 2); ++i) {
          int sum[4];
          if constexpr (kBy16) {
            multiply_bytes(sum, a[i / 2][i % 2 * 2], a[i / 2][i % 2 * 2 + 1], b[i]);
          } else {
            multiply_bytes(sum, a[i], b[2 * i], b[2 * i + 1], 0);
          }
          const int n = quarter * (kBy16 ? 4 : 2) + i;
#pragma unroll
          for (int e = 0; e < 4; ++e) whole[r][e] += byte_of<kBy16>(s[e / 2][n / 4], n % 4) * sum[e];
        }
      }
    }
    // Minima, or zeros of 32, times the digits' sums.
    std::uint32_t of[2] = {};
    if (kBy16 || t < 2) {
      of[0] = *reinterpret_cast<const std::uint32_t*>(scales + (kBy16 ? 0 : 8) + t * 4);
      of[1] = *reinterpret_cast<const std::uint32_t*>(scales + 128 + (kBy16 ? 0 : 8) + t * 4);
    }
    float d[2], m[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kBy16) {
        d[i] = __half2float(reinterpret_cast<const __half*>(stage + kForm.deltas_at())[lane / 4 + 8 * i]);
      } else {
        const float2 dm = __half22float2(reinterpret_cast<const __half2*>(stage + kForm.deltas_at())[lane / 4 + 8 * i]);
        d[i] = dm.x;
        m[i] = dm.y;
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      const uint2 b =
          *reinterpret_cast<const uint2*>(x[r] + DigitForm::kSumsAt + digit * kSumBytes + (kBy16 ? t : t % 2) * 8);
      int low[4], high[4];
      multiply_bytes(low, of[0], of[1], b.x);
      multiply_bytes(high, of[0], of[1], b.y);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int added = low[e] + 64 * high[e];
        if constexpr (kBy16) {
          part[r][e] = d[e / 2] * static_cast<float>(whole[r][e] - 32 * added);
        } else {
          part[r][e] = fmaf(d[e / 2], static_cast<float>(whole[r][e]), m[e / 2] * static_cast<float>(added));
        }
      }
    }
  }

  /// This warp's part of a tile to where the tile is added; the columns of a row together.
  __device__ void put_parts(int tile) {
    const int n = tile - first_tile;
    parts_empty(n).wait((static_cast<std::uint32_t>(n / kParts) & 1) ^ 1);
    float* const to = parts(n, warp);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const float a = sums[r][2 * upper], b = sums[r][2 * upper + 1];
        float sum = lane % 2 == 0 ? fmaf(256.0F, b, a) : 65536.0F * a;
        sum += __shfl_xor_sync(~0U, sum, 1);
        if (lane % 2 == 0) to[(2 * r + lane % 4 / 2) * kTileOutputs + lane / 4 + 8 * upper] = sum;
        sums[r][2 * upper] = sums[r][2 * upper + 1] = 0.0F;
      }
    }
    parts_full(n).arrive();
  }

  __device__ void add_parts(int tile) const {
    const int n = tile - first_tile;
    parts_full(n).wait(static_cast<std::uint32_t>(n / kParts) & 1);
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
      float sum = 0.0F;
      for (int w = 0; w < n_warps; ++w) sum += parts(n, w)[r * 32 + lane];
      const int row = 2 * r + lane / kTileOutputs, of_tile = lane % kTileOutputs, out = tile * kTileOutputs + of_tile;
      if (p.y != nullptr) {
        if (row < p.n_rows && out < p.n_out) p.y[static_cast<std::size_t>(row) * p.n_out + out] = sum;
      } else {
        const float up = __shfl_down_sync(~0U, sum, kTilePairs);
        if (row < p.n_rows && of_tile < kTilePairs) write_gated(p, row, tile * kTilePairs + of_tile, sum, up);
      }
    }
    parts_empty(n).arrive();
  }

  __device__ void run() {
    int stage = warp, to_add = -1;
    for (int tile = first_tile; tile < end_tile; ++tile) {
      for (; stage < n_chunks; stage += n_warps) {
        full(slot).wait(parity);
        compute(ring + slot * kStageBytes, stage);
        __syncwarp();
        fetch();
        if (++slot == n_slots) {
          slot = 0;
          parity ^= 1;
        }
      }
      stage -= n_chunks;
      put_parts(tile);
      if (to_add >= 0) add_parts(to_add);
      to_add = (tile - first_tile) % n_warps == warp ? tile : -1;
    }
    if (to_add >= 0) add_parts(to_add);
  }
};

template <QuantType kType, int kRowTiles>
__global__ __launch_bounds__(512, 1) void multiply_in_bytes(const QuantProduct p, int n_slots) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  const int n_tiles = (p.n_out + kTileOutputs - 1) / kTileOutputs;
  const auto first_of = [&](unsigned block) {
    return static_cast<int>(static_cast<std::uint64_t>(n_tiles) * block / gridDim.x);
  };
  ByteMultiplier<kType, kRowTiles> m{
      p,
      memory,
      n_slots,
      static_cast<int>(blockDim.x) / 32,
      static_cast<int>(threadIdx.x) / 32,
      static_cast<int>(threadIdx.x) % 32,
      first_of(blockIdx.x),
      first_of(blockIdx.x + 1),
  };
  allow_next_launch();
  m.init();
  for (int i = 0; i < n_slots; ++i) m.fetch();
  wait_for_launch_before();
  m.make_all_digits();
  __syncthreads();
  m.run();
#endif
}

}  // namespace coppice::matmul::cuda
