// What the product in whole numbers (byte_product.cuh) is made of: the order of its shared memory, and its
// instructions, which CUDA C++ has no names for. Source: the PTX manual, 9.7.
#pragma once

#include <cstdint>

#include "cuda/barrier.cuh"
#include "matmul/cuda/quant_pack.h"

namespace coppice::matmul::cuda {

using namespace coppice::cuda;  // the instructions

inline constexpr int kStageInputs = 256;
inline constexpr int kParts = 4;  ///< tiles whose parts are in shared memory

constexpr int stage_weights(QuantType type) {  ///< bytes of a tile
  const ChunkForm form = chunk_form(type);
  return kStageInputs / form.inputs * form.bytes();
}

/// Of a row's chunk in shared memory: digits, their sums, the chunk's scale.
struct DigitForm {
  static constexpr int kDigits = 3, kDigitBytes = kStageInputs, kSumsAt = kDigits * kDigitBytes;
  /// Sums over 16 or 32 inputs, of each digit: words of four sums, their last six bits and what is above; 0: none
  /// needed.
  static constexpr int sum_bytes(QuantType type) {
    return type == QuantType::kQ6K ? 32 : type == QuantType::kQ4K || type == QuantType::kQ5K ? 16 : 0;
  }
  static constexpr int scale_at(QuantType type) { return kSumsAt + kDigits * sum_bytes(type); }
  static constexpr int bytes(QuantType type) { return scale_at(type) + 16; }
};

/// Where things are in a thread block's shared memory; offsets in bytes.
struct ByteLayout {
  int digits, parts, barriers, bytes;
  static constexpr ByteLayout of(QuantType type, int n_rows, int row_tiles, int n_chunks, int n_warps, int n_slots) {
    ByteLayout at{};
    at.digits = n_warps * n_slots * stage_weights(type);
    at.parts = at.digits + n_rows * n_chunks * DigitForm::bytes(type);
    at.barriers = at.parts + kParts * n_warps * row_tiles * 32 * 4;
    at.bytes = at.barriers + (n_warps * n_slots + 2 * kParts) * 8;
    return at;
  }
};

/// D = A * B + c in whole numbers: A 16 outputs x 32 inputs, B 32 inputs x 8 columns.
__device__ inline void multiply_bytes(int (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                                      int c) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
      "%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}
/// The same with 16 inputs.
__device__ inline void multiply_bytes(int (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

/// Byte i of words, as a number.
template <bool kSigned>
__device__ inline int byte_of(std::uint32_t word, int i) {
  if constexpr (kSigned) return static_cast<int>(word << (24 - 8 * i)) >> 24;
  return static_cast<int>(word >> (8 * i) & 0xff);
}

}  // namespace coppice::matmul::cuda
