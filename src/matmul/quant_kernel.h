// The inner loops of QuantMatrix, compiled for each instruction set that can run them.
#pragma once

#include <cstddef>
#include <span>

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

/// Rows [first_row, end_row) x tiles [first_tile, end_tile) of the products of one x. Tiles are counted through all of
/// them; no tile belongs to two.
struct QuantProducts {
  QuantType type;
  int n_in;
  std::span<const QuantMatrix::Product> products;
  const float* x;  ///< [n_rows, n_in]
  int first_row, end_row;
  int first_tile, end_tile;
};

bool kernel_supports(QuantType type);

/// REQUIRES: kernel_supports(products.type).
void run_kernel(const QuantProducts& products);

}  // namespace coppice::matmul
