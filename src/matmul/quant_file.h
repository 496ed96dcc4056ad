// Blocks of quantised weights as a GGUF file has them, taken apart: the one place that knows the bytes of each type's
// block. The types are ggml's (ggml-common.h, dequantize_row_* of ggml-quants.c).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "matmul/quant_matrix.h"

namespace coppice::matmul {

/// A block of the file: file_weights() weights, each d * s * (q - zero) + m * t (quant_matrix.h). What a type lacks
/// isn't set.
struct FileBlock {
  std::uint16_t d, m;               ///< bits of f16; MXFP4: the exponent of d, 128 too large
  std::array<std::uint8_t, 16> s;   ///< of 32 weights each, or 16 (Q6_K); signed ones as two's complement
  std::array<std::uint8_t, 8> t;    ///< of 32 weights each
  std::array<std::uint8_t, 256> q;  ///< in the order of the inputs; IQ4: which of the table's numbers
};

constexpr int kFileSuper = 256;  ///< weights in a block of a type with two levels of scales

/// Bytes of a block of the file.
std::size_t file_bytes(QuantType type);

/// REQUIRES: file_bytes(type) bytes.
void read_block(QuantType type, const std::byte* from, FileBlock& to);

}  // namespace coppice::matmul
