// Packed weights (quant_pack.h) as bf16 numbers, each rounded once, in the registers of A of a warpgroup's product.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/warp_product.cuh"
#include "matmul/cuda/unpack.cuh"

namespace coppice::matmul::cuda {

using namespace coppice::cuda;  // the instructions

/// Byte i of a word and 128 more, as f32. REQUIRES: the byte is below 128.
template <int i>
__device__ inline float small_number(std::uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x43000000, 0x7044 | i << 8));
}
/// A signed byte, from its bits with the sign turned over.
template <int i>
__device__ inline float signed_number(std::uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x47000000, 0x7404 | i << 4)) - 32896.0F;
}

/// A lane's scales of a stage (its two outputs), where 256 inputs share them; else nothing is kept.
template <QuantType kType>
struct StageScales {
  static constexpr ChunkForm kForm = chunk_form(kType);
  static constexpr bool kMins = kType == QuantType::kQ4K || kType == QuantType::kQ5K;
  std::uint32_t s[2][4];  ///< bytes, of the 256 inputs in order. Q4_K, Q5_K: the last two words are t
  float d[2], m[2];

  __device__ void read(const unsigned char* chunk, int lane) {
    if constexpr (kForm.inputs == 256) {
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int out = lane / 4 + 8 * upper;
        const uint4 w = *reinterpret_cast<const uint4*>(chunk + kForm.scales_at() + out * 16);
        s[upper][0] = w.x;
        s[upper][1] = w.y;
        s[upper][2] = w.z;
        s[upper][3] = w.w;
        if constexpr (kMins) {
          const float2 dm = __half22float2(reinterpret_cast<const __half2*>(chunk + kForm.deltas_at())[out]);
          d[upper] = dm.x;
          m[upper] = dm.y;
        } else {
          d[upper] = __half2float(reinterpret_cast<const __half*>(chunk + kForm.deltas_at())[out]);
        }
      }
    }
  }

  /// What a byte's number (small_number's, or signed_number's for Q8_0) is multiplied by, and what is added then, for
  /// 16 inputs of an output: `i` of the quarter's four.
  template <int kQuarter, int i>
  __device__ float2 of(const unsigned char* chunks, int quarter, int lane, int upper) const {
    if constexpr (kMins) {
      constexpr int kBlock = kQuarter * 2 + i / 2;
      const float by = fmaf(d[upper], small_number<kBlock % 4>(s[upper][kBlock / 4]), -128.0F * d[upper]);
      const float plus = fmaf(m[upper], small_number<kBlock % 4>(s[upper][2 + kBlock / 4]), -128.0F * m[upper]);
      return {by, fmaf(-128.0F, by, plus)};
    } else if constexpr (kType == QuantType::kQ6K) {
      const float by = d[upper] * signed_number<i>(s[upper][kQuarter] ^ 0x80808080);
      return {by, -160.0F * by};
    } else {
      const unsigned char* deltas = chunks + quarter * kForm.bytes() + kForm.deltas_at();
      const int at = i / 2 * 16 + lane / 4 + 8 * upper;
      if constexpr (kType == QuantType::kMxfp4) {
        const float by = power_of_two(deltas[at]);
        return {by, -192.0F * by};
      } else {
        const float by = __half2float(reinterpret_cast<const __half*>(deltas)[at]);
        return {by, kType == QuantType::kQ4_0 ? -136.0F * by : 0.0F};
      }
    }
  }

  /// One lane's weights of 64 inputs: [16 inputs][A's registers]. kQuarter: which quarter of the stage, where scales
  /// are kept.
  template <int kQuarter>
  __device__ void unpack(const unsigned char* chunks, int quarter, int lane, std::uint32_t (&a)[4][4]) const {
    if constexpr (kType == QuantType::kBf16) {
      read_numbers(chunks, quarter, lane, a);
    } else {
      std::uint32_t bytes[2][4];
      read_bytes<kType>(chunks, quarter, lane, bytes);
      unpack_16<kQuarter, 0>(chunks, quarter, lane, bytes[0], a[0]);
      unpack_16<kQuarter, 1>(chunks, quarter, lane, bytes[0], a[1]);
      unpack_16<kQuarter, 2>(chunks, quarter, lane, bytes[1], a[2]);
      unpack_16<kQuarter, 3>(chunks, quarter, lane, bytes[1], a[3]);
    }
  }

 private:
  template <int kQuarter, int i>
  __device__ void unpack_16(const unsigned char* chunks, int quarter, int lane, const std::uint32_t (&bytes)[4],
                            std::uint32_t (&a)[4]) const {
#pragma unroll
    for (int upper = 0; upper < 2; ++upper) {
      const float2 scale = of<kQuarter, i>(chunks, quarter, lane, upper);
      std::uint32_t q = bytes[i % 2 * 2 + upper];
      float w[4];
      if constexpr (kType == QuantType::kQ8_0) {
        q ^= 0x80808080;
        w[0] = signed_number<0>(q) * scale.x;
        w[1] = signed_number<1>(q) * scale.x;
        w[2] = signed_number<2>(q) * scale.x;
        w[3] = signed_number<3>(q) * scale.x;
      } else {
        w[0] = fmaf(small_number<0>(q), scale.x, scale.y);
        w[1] = fmaf(small_number<1>(q), scale.x, scale.y);
        w[2] = fmaf(small_number<2>(q), scale.x, scale.y);
        w[3] = fmaf(small_number<3>(q), scale.x, scale.y);
      }
      a[upper] = coppice::cuda::pack<__nv_bfloat16>(w[0], w[1]);
      a[upper + 2] = coppice::cuda::pack<__nv_bfloat16>(w[2], w[3]);
    }
  }
};

}  // namespace coppice::matmul::cuda
