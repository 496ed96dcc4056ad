// The inner loops of QuantMatrix, compiled for each instruction set that can run them.
#pragma once

#include <cstddef>

#include "matmul/quant_matrix.h"

namespace coppice::matmul {

/// Bytes of one block of a tile; its parts stand in this order: d, m, q.
struct TileBlock {
  std::size_t m, q, size;  ///< offsets of m and q

  static constexpr TileBlock of(QuantType type) {
    constexpr std::size_t halves = QuantMatrix::kTileOutputs * 2;
    constexpr std::size_t weights = std::size_t{QuantMatrix::kTileOutputs} * QuantMatrix::kBlock;
    switch (type) {
      case QuantType::kQ4_0:
        return {halves, halves, halves + weights / 2};
      case QuantType::kQ4_1:
        return {halves, 2 * halves, 2 * halves + weights / 2};
      case QuantType::kQ8_0:
        break;
    }
    return {halves, halves, halves + weights};
  }
};

/// Rows [first_row, end_row) x tiles [first_tile, end_tile) of y = W x.
struct QuantProduct {
  QuantType type;
  int n_in, n_out;
  const std::byte* packed;  ///< aligned to a vector
  const float* x;           ///< [n_rows, n_in]
  float* y;                 ///< [n_rows, n_out]
  int first_row, end_row;
  int first_tile, end_tile;
};

bool kernel_supports(QuantType type);

/// REQUIRES: kernel_supports(product.type).
void run_kernel(const QuantProduct& product);

}  // namespace coppice::matmul
