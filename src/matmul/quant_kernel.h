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
  QuantType type;
  int n_in;
  std::span<const QuantMatrix::Product> products;
  QuantMatrix::Rows rows;
  int panel_rows;    ///< that a unit multiplies together
  int n_tiles;       ///< of all products
  int whole_panels;  ///< panels that aren't cut
  int cuts;          ///< units of each of the others

  int n_panels() const { return (rows.n + panel_rows - 1) / panel_rows; }
  int n_units() const { return whole_panels + (n_panels() - whole_panels) * cuts; }

  /// Rows [first_row, end_row) x tiles [first_tile, end_tile), counted through all products.
  struct Unit {
    int first_row, end_row, first_tile, end_tile;
  };
  Unit unit(int index) const {
    const bool whole = index < whole_panels;
    const int panel = whole ? index : whole_panels + (index - whole_panels) / cuts;
    const int cut = whole ? 0 : (index - whole_panels) % cuts, n = whole ? 1 : cuts;
    return {panel * panel_rows, std::min(rows.n, (panel + 1) * panel_rows),
            static_cast<int>(std::int64_t{n_tiles} * cut / n), static_cast<int>(std::int64_t{n_tiles} * (cut + 1) / n)};
  }
};

/// A tile's part of a product: y[n_rows][n_out] = plus + rows times n_blocks of the tile, n_out <= kTileOutputs.
struct TileProduct {
  const std::byte* tile;  ///< the first of its blocks
  int n_blocks, n_rows, n_out;
  const float* plus;  ///< y, something else, or nullptr
  float* y;
  std::ptrdiff_t stride;  ///< floats between rows of y, and of plus
};

/// Goes through the units that a worker claims, kBlocksAtOnce at a time: round(row, n_rows, block, n_blocks) makes blocks
/// of x ready, unless the unit before had the same rows and all blocks fit; then multiply(TileProduct) is called for each of
/// the unit's tiles.
template <class Round, class Multiply>
void each_unit(const QuantProducts& p, Claims& claims, int n_workers, Round&& round, Multiply&& multiply) {
  constexpr int kOut = QuantMatrix::kTileOutputs;
  const int all_blocks = p.n_in / QuantMatrix::kBlock;
  const std::size_t block_bytes = TileBlock::of(p.type).size;
  int rounded = -1;
  for (int index; (index = claims.next(p.n_units(), n_workers)) < p.n_units();) {
    const QuantProducts::Unit unit = p.unit(index);
    const int row = unit.first_row, n_rows = unit.end_row - row;
    for (int block = 0; block < all_blocks; block += QuantMatrix::kBlocksAtOnce) {
      const int n_blocks = std::min(QuantMatrix::kBlocksAtOnce, all_blocks - block);
      if (rounded != row || n_blocks != all_blocks) round(row, n_rows, block, n_blocks);
      rounded = row;
      int before = 0;  // tiles of the products before
      for (const QuantMatrix::Product& product : p.products) {
        const QuantMatrix& w = *product.matrix;
        const float* plus = block > 0 ? product.y : product.plus;
        const int end = std::min(unit.end_tile - before, w.n_tiles());
        for (int t = std::max(unit.first_tile - before, 0); t < end; ++t) {
          const std::ptrdiff_t at = std::ptrdiff_t{row} * w.n_out() + std::ptrdiff_t{t} * kOut;
          const auto first_block =
              static_cast<std::size_t>(t) * static_cast<std::size_t>(all_blocks) + static_cast<std::size_t>(block);
          multiply(TileProduct{.tile = w.packed() + first_block * block_bytes,
                               .n_blocks = n_blocks,
                               .n_rows = n_rows,
                               .n_out = std::min(kOut, w.n_out() - t * kOut),
                               .plus = plus ? plus + at : nullptr,
                               .y = product.y + at,
                               .stride = w.n_out()});
        }
        before += w.n_tiles();
      }
    }
  }
}

constexpr int kVectorPanelRows = 16, kAmxPanelRows = 64;  ///< at most
constexpr int kAmxRows = 13;                              ///< fewer are multiplied sooner without AMX

bool kernel_supports(QuantType type);

/// One of n_workers. REQUIRES: kernel_supports(products.type); panels of at most kVectorPanelRows.
void run_kernel(const QuantProducts& products, Claims& claims, int n_workers);

/// The same on AMX. REQUIRES: simd::amx(); panels of at most kAmxPanelRows.
void run_amx(const QuantProducts& products, Claims& claims, int n_workers);

}  // namespace coppice::matmul
