// How the GPU has a matrix of quantised weights: in the order in which the lanes of a warp take them for a product of
// 16 outputs, still quantised. Knows no CUDA; made while a model is loaded, and tested without a GPU.
//
// Tiles of 16 outputs, one after the other; a tile's chunks along n_in: 256 inputs for types with two levels of scales,
// else 64. Types as in quant_matrix.h, weights d * s * (q - zero) + m * t. A chunk has
//   low    Q8_0: for each 32 inputs, of each lane 16 bytes; BF16: the same for each 16; else for each 64 inputs: the
//          lowest four bits of q
//   high   Q5_K: of each lane 16 bytes, 4 for each 64 inputs; Q6_K: 32 bytes, 8 for each 64 inputs: the other bits of q
//   s, t   Q4_K, Q5_K: for each output the s of the 8 blocks of 32 inputs, then their t; Q6_K: for each output s of the
//          16 blocks of 16
//   d, m   Q4_K, Q5_K: for each output d and m; Q6_K: d; f16. Else for each 32 inputs d of each output; MXFP4: its
//          exponent, a byte
// Lane l has outputs l / 4 and 8 + l / 4, and of each 16 inputs two from 2 (l % 4) on and two from 8 + 2 (l % 4) on, as
// A of a product has them: the bytes of a word. Of each block of 32 inputs it has four words: for the first 16 inputs
// those of its two outputs, then for the others. The words are
//   four bits   those of a block's 32 inputs in the lower halves of the bytes, those of the next block in the upper
//               ones. MXFP4: byte i in bits [4 i, +4), the next block's in the upper 16 bits
//   8 bits      the lane's words of a block, then, 512 bytes later, of the next one; two's complement, without `zero`
//   BF16        of each 16 inputs A's four registers
//   high bits   one bit: of a quarter's (64 inputs') word, word w of block b has in each byte bit 4 b + w
//               two bits: of a quarter's word b, word w has in each byte bits [2 w, +2)
// As many bytes as in the file; Q4_K and Q5_K 2 to 3 % more. Outputs beyond n_out are zeros.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "matmul/quant_matrix.h"

namespace coppice::matmul::cuda {

inline constexpr int kTileOutputs = 16;
inline constexpr int kTilePairs = kTileOutputs / 2;

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
         type == QuantType::kQ6K || type == QuantType::kMxfp4 || type == QuantType::kBf16;
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
    case QuantType::kMxfp4:
      return {.inputs = 64, .low = 512, .deltas = 32};
    case QuantType::kBf16:
      return {.inputs = 64, .low = 2048};
    default:
      return {.inputs = 64, .low = 512, .deltas = 64};
  }
}

/// blocks: n_out rows of n_in weights, as the file has them.
/// REQUIRES: has_product(type); n_in is a multiple of chunk_form(type).inputs.
std::vector<std::byte> pack(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks);

/// A gated unit's two matrices as one of 2 n outputs: those of a tile are the next kTilePairs of `gate`, then the same
/// ones of `up`, so that a lane has the sums of both (GatedOutput). REQUIRES: as pack(), for n rows of each; n is a
/// multiple of kTilePairs.
std::vector<std::byte> pack_pairs(QuantType type, int n_in, int n, std::span<const std::byte> gate,
                                  std::span<const std::byte> up);

}  // namespace coppice::matmul::cuda
