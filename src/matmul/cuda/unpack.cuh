// Packed weights (quant_pack.h) as bytes, or as numbers in bf16, in the order in which the tensor cores take them from
// a lane.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "matmul/cuda/quant_pack.h"

namespace coppice::matmul::cuda {

/// The doubled numbers of the four codes in the lower half of a word. opposite: those with their signs changed. A
/// selector above 7 gives a byte's sign, which is 0 here.
__device__ inline std::uint32_t mxfp4_bytes(std::uint32_t codes, std::uint32_t opposite) {
  std::uint32_t plus, minus;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(plus) : "r"(0x03020100), "r"(0x0c080604), "r"(codes));
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(minus) : "r"(0x03020100), "r"(0x0c080604), "r"(opposite));
  return 0x40404040 + plus - minus;  // no byte borrows from the next
}
/// Of MXFP4: a d for the doubled numbers, from its exponent. 0 where f32 has no more exponents.
__device__ inline float power_of_two(std::uint32_t exponent) {
  return 0.5F * __uint_as_float(exponent << 23);
}

/// A lane's q of 64 inputs, four in a word: [32 inputs][word], as quant_pack.h orders words. Q8_0: two's complement,
/// less its zero; MXFP4: twice the numbers, and 64 more. kSigned: Q4_0 as 16 (q - 8), two's complement.
template <QuantType kType, bool kSigned = false>
__device__ inline void read_bytes(const unsigned char* chunks, int quarter, int lane, std::uint32_t (&a)[2][4]) {
  constexpr ChunkForm kForm = chunk_form(kType);
  constexpr bool kSuper = kForm.inputs == 256;
  const unsigned char* chunk = kSuper ? chunks : chunks + quarter * kForm.bytes();
  const uint4 w = *reinterpret_cast<const uint4*>(chunk + ((kSuper ? quarter * 32 : 0) + lane) * 16);
  const std::uint32_t words[4] = {w.x, w.y, w.z, w.w};
  if constexpr (kType == QuantType::kQ8_0) {
    const uint4 v = *reinterpret_cast<const uint4*>(chunk + (32 + lane) * 16);
    const std::uint32_t second[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[0][i] = words[i];
      a[1][i] = second[i];
    }
  } else if constexpr (kType == QuantType::kMxfp4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[0][i] = mxfp4_bytes(words[i], words[i] ^ 0x88888888);
      a[1][i] = mxfp4_bytes(words[i] >> 16, (words[i] ^ 0x88888888) >> 16);
    }
  } else if constexpr (kType == QuantType::kQ4_0 && kSigned) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      a[0][i] = (words[i] << 4 & 0xf0f0f0f0) ^ 0x80808080;
      a[1][i] = (words[i] & 0xf0f0f0f0) ^ 0x80808080;
    }
  } else {
    std::uint32_t high[2] = {};
    if constexpr (kType == QuantType::kQ5K)
      high[0] = *reinterpret_cast<const std::uint32_t*>(chunk + kForm.high_at() + lane * 16 + 4 * quarter);
    if constexpr (kType == QuantType::kQ6K) {
      const uint2 h =
          *reinterpret_cast<const uint2*>(chunk + kForm.high_at() + quarter / 2 * 512 + lane * 16 + quarter % 2 * 8);
      high[0] = h.x;
      high[1] = h.y;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        std::uint32_t q = (block == 0 ? words[i] : words[i] >> 4) & 0x0f0f0f0f;
        if constexpr (kType == QuantType::kQ5K) {
          const int n = 4 * block + i;
          q |= (n < 4 ? high[0] << (4 - n) : high[0] >> (n - 4)) & 0x10101010;
        }
        if constexpr (kType == QuantType::kQ6K)
          q |= (i < 2 ? high[block] << (4 - 2 * i) : high[block] >> (2 * i - 4)) & 0x30303030;
        a[block][i] = q;
      }
    }
  }
}

/// bf16 whole numbers from bytes 2 i and 2 i + 1 of a word, less `zero` (128 + the type's). 0: they stay 128 too large.
/// A byte below 128 is the last bits of bf16(128).
template <int kPair>
__device__ inline std::uint32_t numbers(std::uint32_t bytes, std::uint32_t zero) {
  const std::uint32_t bits = __byte_perm(bytes, 0x43434343, kPair == 0 ? 0x4140 : 0x4342);
  if (zero == 0) return bits;
  const __nv_bfloat162 x =
      __hsub2(reinterpret_cast<const __nv_bfloat162&>(bits), reinterpret_cast<const __nv_bfloat162&>(zero));
  return reinterpret_cast<const std::uint32_t&>(x);
}

/// Of BF16.
__device__ inline void read_numbers(const unsigned char* chunks, int quarter, int lane, std::uint32_t (&a)[4][4]) {
  const auto* from = reinterpret_cast<const uint4*>(chunks + quarter * chunk_form(QuantType::kBf16).bytes()) + lane;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint4 w = from[i * 32];
    a[i][0] = w.x;
    a[i][1] = w.y;
    a[i][2] = w.z;
    a[i][3] = w.w;
  }
}

/// One lane's weights of 64 inputs as numbers for four products: [16 inputs][A's registers].
template <QuantType kType>
__device__ inline void unpack(const unsigned char* chunks, int quarter, int lane, std::uint32_t (&a)[4][4]) {
  if constexpr (kType == QuantType::kBf16) return read_numbers(chunks, quarter, lane, a);
  std::uint32_t bytes[2][4];
  read_bytes<kType>(chunks, quarter, lane, bytes);
  constexpr std::uint32_t kZero = kType == QuantType::kQ4_0    ? 0x43084308
                                  : kType == QuantType::kQ6K   ? 0x43204320
                                  : kType == QuantType::kMxfp4 ? 0x43404340
                                                               : 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const std::uint32_t q = bytes[i / 4][i % 4];
    std::uint32_t(&to)[4] = a[i / 2];           // 16 inputs; of an odd word the upper output
    if constexpr (kType == QuantType::kQ8_0) {  // a byte is its low seven bits less its sign's 128
      const std::uint32_t low = q & 0x7f7f7f7f, sign = q & 0x80808080;
      to[i % 2] = numbers<0>(low, numbers<0>(sign, 0));
      to[i % 2 + 2] = numbers<1>(low, numbers<1>(sign, 0));
    } else {
      to[i % 2] = numbers<0>(q, kZero);
      to[i % 2 + 2] = numbers<1>(q, kZero);
    }
  }
}

}  // namespace coppice::matmul::cuda
