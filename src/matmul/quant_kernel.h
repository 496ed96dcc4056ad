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
  bool gated;        ///< the first one's tiles take the second one's with them
  int panel_rows;    ///< that a unit multiplies together
  int n_tiles;       ///< of all products; gated, of the first
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

/// Rows [first_row, + n_rows) x blocks [first_block, + n_blocks) of a product.
struct UnitPart {
  int first_row, n_rows, first_block, n_blocks;

  TileProduct of(const QuantMatrix::Product& product, int tile) const {
    constexpr int kOut = QuantMatrix::kTileOutputs;
    const QuantMatrix& w = *product.matrix;
    const std::ptrdiff_t at = std::ptrdiff_t{first_row} * w.n_out() + std::ptrdiff_t{tile} * kOut;
    const std::ptrdiff_t block = std::ptrdiff_t{tile} * (w.n_in() / QuantMatrix::kBlock) + first_block;
    const float* plus = first_block > 0 ? product.y : product.plus;
    return {.tile = w.packed() + block * static_cast<std::ptrdiff_t>(TileBlock::of(w.type()).size),
            .n_blocks = n_blocks,
            .n_rows = n_rows,
            .n_out = std::min(kOut, w.n_out() - tile * kOut),
            .plus = plus ? plus + at : nullptr,
            .y = product.y + at,
            .stride = w.n_out()};
  }
};

/// Goes through the units that a worker claims, kBlocksAtOnce at a time: kernel.round(part) makes the part's x ready, unless
/// the unit before had the same rows and all blocks fit; then kernel.multiply(tile product) is called for each of the unit's
/// tiles, and kernel.gate(tile product, the other one's y) for each finished pair of gated ones.
template <class Kernel>
void each_unit(const QuantProducts& p, Claims& claims, int n_workers, Kernel& kernel) {
  const int all_blocks = p.n_in / QuantMatrix::kBlock;
  int rounded = -1;
  for (int index; (index = claims.next(p.n_units(), n_workers)) < p.n_units();) {
    const QuantProducts::Unit unit = p.unit(index);
    for (int block = 0; block < all_blocks; block += QuantMatrix::kBlocksAtOnce) {
      const int n_blocks = std::min(QuantMatrix::kBlocksAtOnce, all_blocks - block);
      const UnitPart part{unit.first_row, unit.end_row - unit.first_row, block, n_blocks};
      if (rounded != unit.first_row || n_blocks != all_blocks) kernel.round(part);
      rounded = unit.first_row;
      if (p.gated) {
        for (int t = unit.first_tile; t < unit.end_tile; ++t) {
          kernel.multiply(part.of(p.products[0], t));
          kernel.multiply(part.of(p.products[1], t));
        }
        if (block + n_blocks < all_blocks) continue;
        for (int t = unit.first_tile; t < unit.end_tile;
             ++t) {  // not yet above: it would wait for what was just stored
          kernel.gate(part.of(p.products[0], t), part.of(p.products[1], t).y);
        }
        continue;
      }
      int before = 0;  // tiles of the products before
      for (const QuantMatrix::Product& product : p.products) {
        const int n_tiles = product.matrix->n_tiles(), end = std::min(unit.end_tile - before, n_tiles);
        for (int t = std::max(unit.first_tile - before, 0); t < end; ++t) kernel.multiply(part.of(product, t));
        before += n_tiles;
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
