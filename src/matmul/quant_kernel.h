// The inner loops of QuantMatrix, compiled for each instruction set that can run them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

/// The products of one x, cut into units. A panel of rows is one unit of all tiles, but the last panels are cut further,
/// so that no worker waits long for another one.
struct QuantProducts {
  static constexpr int kPanelRows = 16;

  QuantType type;
  int n_in;
  std::span<const QuantMatrix::Product> products;
  const float* x;  ///< [n_rows, n_in]
  int n_rows;
  int n_tiles;       ///< of all products
  int whole_panels;  ///< panels that aren't cut
  int cuts;          ///< units of each of the others

  int n_panels() const { return (n_rows + kPanelRows - 1) / kPanelRows; }
  int n_units() const { return whole_panels + (n_panels() - whole_panels) * cuts; }

  /// Rows [first_row, end_row) x tiles [first_tile, end_tile), counted through all products.
  struct Unit {
    int first_row, end_row, first_tile, end_tile;
  };
  Unit unit(int index) const {
    const bool whole = index < whole_panels;
    const int panel = whole ? index : whole_panels + (index - whole_panels) / cuts;
    const int cut = whole ? 0 : (index - whole_panels) % cuts, n = whole ? 1 : cuts;
    return {panel * kPanelRows, std::min(n_rows, (panel + 1) * kPanelRows),
            static_cast<int>(std::int64_t{n_tiles} * cut / n), static_cast<int>(std::int64_t{n_tiles} * (cut + 1) / n)};
  }
};

bool kernel_supports(QuantType type);

/// One of n_workers. REQUIRES: kernel_supports(products.type).
void run_kernel(const QuantProducts& products, Claims& claims, int n_workers);

}  // namespace coppice::matmul
