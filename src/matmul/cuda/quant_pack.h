// How the GPU has a matrix of quantised weights: in the order in which the lanes of a warp take them for a product of 16 outputs,
// still quantised. Knows no CUDA; made while a model is loaded, and tested without a GPU.
//
// Tiles of 16 outputs, one after the other; a tile's chunks along n_in: 256 inputs for types with two levels of scales, else 64.
// Types as in quant_matrix.h, weights d * s * (q - zero) + m * t. A chunk has
//   low    Q8_0: for each 32 inputs, of each lane 16 bytes; else for each 64 inputs: the lowest four bits of q
//   high   Q5_K: of each lane 16 bytes, 4 for each 64 inputs; Q6_K: 32 bytes, 8 for each 64 inputs: the other bits of q
//   s, t   Q4_K, Q5_K: for each output, of each of the 8 blocks of 32 inputs s and t; Q6_K: for each output s of the 16 blocks of 16
//   d, m   Q4_K, Q5_K: for each output d and m; Q6_K: d; f16. Else for each 32 inputs d of each output
// Lane l has outputs l / 4 and 8 + l / 4, and of each 16 inputs those from 4 (l % 4) on: four. In words of 32 bits:
//   four bits   a block of 32 inputs is a word for each of the two outputs. Inputs 2 i and 2 i + 1 of the lane's eight there are in
//               bits [4 i, +4) and [16 + 4 i, +4)
//   8 bits      two words for each output, each four inputs: 0 and 1 in bytes 0 and 2, 2 and 3 in bytes 1 and 3; two's complement,
//               without `zero`
//   high bits   words 4 j + i of a 64-input quarter as `low` has them (i: pair of inputs, j: word) are pair n = 4 j + i.
//               One bit: bits n and 16 + n. Two bits: of the word n / 8, bits 2 (n % 8) and 16 + 2 (n % 8)
// As many bytes as in the file; Q4_K and Q5_K 2 to 3 % more. Outputs beyond n_out are zeros.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "matmul/quant_matrix.h"

namespace coppice::matmul::cuda {

inline constexpr int kTileOutputs = 16;

/// Of a chunk; offsets and sizes in bytes.
struct ChunkForm {
  int inputs = 0;
  int low = 0, high = 0;  ///< sizes
  int scales = 0, deltas = 0;
  constexpr int bytes() const { return low + high + scales + deltas; }
  constexpr int high_at() const { return low; }
  constexpr int scales_at() const { return low + high; }
  constexpr int deltas_at() const { return low + high + scales; }
};

constexpr bool has_product(QuantType type) {
  return type == QuantType::kQ4_0 || type == QuantType::kQ8_0 || type == QuantType::kQ4K || type == QuantType::kQ5K ||
         type == QuantType::kQ6K;
}

/// REQUIRES: has_product(type).
constexpr ChunkForm chunk_form(QuantType type) {
  switch (type) {
    case QuantType::kQ4K:
      return {.inputs = 256, .low = 2048, .scales = 256, .deltas = 64};
    case QuantType::kQ5K:
      return {.inputs = 256, .low = 2048, .high = 512, .scales = 256, .deltas = 64};
    case QuantType::kQ6K:
      return {.inputs = 256, .low = 2048, .high = 1024, .scales = 256, .deltas = 32};
    case QuantType::kQ8_0:
      return {.inputs = 64, .low = 1024, .deltas = 64};
    default:
      return {.inputs = 64, .low = 512, .deltas = 64};
  }
}

/// blocks: n_out rows of n_in weights, as the file has them.
/// REQUIRES: has_product(type); n_in is a multiple of chunk_form(type).inputs.
std::vector<std::byte> pack(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks);

}  // namespace coppice::matmul::cuda
