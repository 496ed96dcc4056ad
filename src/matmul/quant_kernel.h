// The inner loops of QuantMatrix, compiled for each instruction set that can run them.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "matmul/quant_matrix.h"

namespace coppice::matmul {

/// How a type is packed: the table at the head of quant_matrix.h as data.
struct PackedForm {
  int bits;                 ///< of q: 4, 5, 6 or 8
  int zero;                 ///< a power of two, or 0: the type has m
  bool table = false;       ///< q is looked up
  int chunk_blocks = 1;     ///< blocks that share d and m
  int scales = 0;           ///< s of a block: 0, 1 or 2
  bool small_mins = false;  ///< t

  static constexpr PackedForm of(QuantType type) {
    constexpr int super = 8;  // blocks of 32 in 256
    switch (type) {
      case QuantType::kQ4_0:
        return {.bits = 4, .zero = 8};
      case QuantType::kQ4_1:
        return {.bits = 4, .zero = 0};
      case QuantType::kQ5_0:
        return {.bits = 5, .zero = 16};
      case QuantType::kQ5_1:
        return {.bits = 5, .zero = 0};
      case QuantType::kIq4Nl:
        return {.bits = 4, .zero = 128, .table = true};
      case QuantType::kQ4K:
        return {.bits = 4, .zero = 0, .chunk_blocks = super, .scales = 1, .small_mins = true};
      case QuantType::kQ5K:
        return {.bits = 5, .zero = 0, .chunk_blocks = super, .scales = 1, .small_mins = true};
      case QuantType::kQ6K:
        return {.bits = 6, .zero = 32, .chunk_blocks = super, .scales = 2};
      case QuantType::kIq4Xs:
        return {.bits = 4, .zero = 128, .table = true, .chunk_blocks = super, .scales = 1};
      case QuantType::kQ8_0:
      case QuantType::kMxfp4:  // GPUs only
      case QuantType::kBf16:
        break;
    }
    return {.bits = 8, .zero = 128};
  }

  // Bytes of a chunk's parts, and where they begin.
  static constexpr std::size_t kHalves = QuantMatrix::kTileOutputs * 2, kSmalls = QuantMatrix::kTileOutputs;
  static constexpr std::size_t kGroupBytes = QuantMatrix::kTileOutputs * 4;
  constexpr bool has_min() const { return zero == 0; }
  constexpr std::size_t min_at() const { return kHalves; }
  constexpr std::size_t scales_at() const { return has_min() ? 2 * kHalves : kHalves; }
  constexpr std::size_t small_mins_at() const {
    return scales_at() + static_cast<std::size_t>(chunk_blocks * scales) * kSmalls;
  }
  constexpr std::size_t blocks_at() const {
    return small_mins_at() + (small_mins ? static_cast<std::size_t>(chunk_blocks) * kSmalls : 0);
  }
  constexpr std::size_t low_bytes() const { return (bits == 8 ? 8 : 4) * kGroupBytes; }
  constexpr std::size_t block_bytes() const { return low_bytes() + (bits == 5 ? 1 : bits == 6 ? 2 : 0) * kGroupBytes; }
  constexpr std::size_t chunk_bytes() const {
    return blocks_at() + static_cast<std::size_t>(chunk_blocks) * block_bytes();
  }
};

/// What a q of IQ4_NL and IQ4_XS stands for, + 128 (zero) (ggml's kvalues_iq4nl).
constexpr std::array<std::uint8_t, 16> kIq4Table = {1,   24,  45,  63,  79,  93,  106, 118,
                                                    129, 141, 153, 166, 181, 197, 217, 241};

/// The products of one x, cut into units. A panel of rows is one unit of all tiles, but the last panels are cut further,
/// so that no worker waits long for another one.
struct QuantProducts {
  int n_in;
  std::span<const QuantMatrix::Product> products;
  QuantMatrix::Rows rows;
  bool gated;        ///< the first one's tiles take the second one's with them
  int panel_rows;    ///< that a unit multiplies together
  int panel_blocks;  ///< of these rows that are made ready at once; a multiple of all chunk_blocks
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
  QuantType type;
  const std::byte* tile;  ///< the first of its chunks
  int n_blocks, n_rows, n_out;
  const float* plus;  ///< y, something else, or nullptr
  float* y;
  std::ptrdiff_t stride;  ///< floats between rows of y, and of plus
};

/// Rows [first_row, + n_rows) x blocks [first_block, + n_blocks) of a product, which are whole chunks.
struct UnitPart {
  int first_row, n_rows, first_block, n_blocks;

  TileProduct of(const QuantMatrix::Product& product, int tile) const {
    constexpr int kOut = QuantMatrix::kTileOutputs;
    const QuantMatrix& w = *product.matrix;
    const std::ptrdiff_t at = std::ptrdiff_t{first_row} * w.n_out() + std::ptrdiff_t{tile} * kOut;
    const PackedForm form = PackedForm::of(w.type());
    const std::ptrdiff_t block = std::ptrdiff_t{tile} * (w.n_in() / QuantMatrix::kBlock) + first_block;
    const float* plus = first_block > 0 ? product.y : product.plus;
    return {.type = w.type(),
            .tile = w.packed() + block / form.chunk_blocks * static_cast<std::ptrdiff_t>(form.chunk_bytes()),
            .n_blocks = n_blocks,
            .n_rows = n_rows,
            .n_out = std::min(kOut, w.n_out() - tile * kOut),
            .plus = plus ? plus + at : nullptr,
            .y = product.y + at,
            .stride = w.n_out()};
  }
};

/// Goes through the units that a worker claims, p.panel_blocks at a time: kernel.round(part) makes the part's x ready, unless
/// the unit before had the same rows and all blocks fit; then kernel.multiply(tile product) is called for each of the unit's
/// tiles, and kernel.gate(tile product, the other one's y) for each finished pair of gated ones.
template <class Kernel>
void each_unit(const QuantProducts& p, Claims& claims, int n_workers, Kernel& kernel) {
  const int all_blocks = p.n_in / QuantMatrix::kBlock;
  int rounded = -1;
  for (int index; (index = claims.next(p.n_units(), n_workers)) < p.n_units();) {
    const QuantProducts::Unit unit = p.unit(index);
    for (int block = 0; block < all_blocks; block += p.panel_blocks) {
      const int n_blocks = std::min(p.panel_blocks, all_blocks - block);
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
/// With all inputs at once a tile is read from end to end: 8,192 inputs, in 240 KiB. A panel for AMX takes 4 KiB a block.
constexpr int kVectorPanelBlocks = 256, kAmxPanelBlocks = 64;
constexpr int kAmxRows = 13;  ///< fewer are multiplied sooner without AMX

/// Calls function.operator()<Type>().
template <class Function>
void with_type(QuantType type, Function function) {
  switch (type) {
    case QuantType::kQ4_0:
      return function.template operator()<QuantType::kQ4_0>();
    case QuantType::kQ4_1:
      return function.template operator()<QuantType::kQ4_1>();
    case QuantType::kQ5_0:
      return function.template operator()<QuantType::kQ5_0>();
    case QuantType::kQ5_1:
      return function.template operator()<QuantType::kQ5_1>();
    case QuantType::kQ8_0:
      return function.template operator()<QuantType::kQ8_0>();
    case QuantType::kIq4Nl:
      return function.template operator()<QuantType::kIq4Nl>();
    case QuantType::kQ4K:
      return function.template operator()<QuantType::kQ4K>();
    case QuantType::kQ5K:
      return function.template operator()<QuantType::kQ5K>();
    case QuantType::kQ6K:
      return function.template operator()<QuantType::kQ6K>();
    case QuantType::kIq4Xs:
      return function.template operator()<QuantType::kIq4Xs>();
    case QuantType::kMxfp4:  // GPUs only
    case QuantType::kBf16:
      return;
  }
}

/// Whether this CPU has the instructions.
bool kernel_supports();

/// One of n_workers. REQUIRES: kernel_supports(); panels of at most kVectorPanelRows x kVectorPanelBlocks.
void run_kernel(const QuantProducts& products, Claims& claims, int n_workers);

/// The same on AMX. REQUIRES: simd::amx(); panels of at most kAmxPanelRows x kAmxPanelBlocks.
void run_amx(const QuantProducts& products, Claims& claims, int n_workers);

}  // namespace coppice::matmul
