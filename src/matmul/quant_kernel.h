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
  bool powers = false;      ///< d is a power of two, and has one byte

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
      case QuantType::kMxfp4:
        return {.bits = 4, .zero = 16, .table = true, .powers = true};
      case QuantType::kQ8_0:
      case QuantType::kBf16:  // GPUs only
        break;
    }
    return {.bits = 8, .zero = 128};
  }

  // Bytes of a chunk's parts, and where they begin.
  static constexpr std::size_t kHalves = QuantMatrix::kTileOutputs * 2, kSmalls = QuantMatrix::kTileOutputs;
  static constexpr std::size_t kGroupBytes = QuantMatrix::kTileOutputs * 4;
  constexpr bool has_min() const { return zero == 0; }
  constexpr std::size_t min_at() const { return powers ? kSmalls : kHalves; }
  constexpr std::size_t scales_at() const { return has_min() ? min_at() + kHalves : min_at(); }
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

/// What a q of MXFP4 stands for, doubled, + 16 (zero) (OCP Microscaling Formats 1.0, E2M1).
constexpr std::array<std::uint8_t, 16> kMxfp4Table = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

constexpr const std::array<std::uint8_t, 16>& table_of(QuantType type) {
  return type == QuantType::kMxfp4 ? kMxfp4Table : kIq4Table;
}

/// The products of one x, cut into units. A panel of rows of one part is one unit of all tiles, but the last panels are
/// cut further, so that no worker waits long for another one.
struct QuantProducts {
  int n_in;
  std::span<const QuantMatrix::Product> products;
  QuantMatrix::Rows rows;
  const Gate* gate;  ///< the first one's tiles take the second one's with them; nullptr: they don't
  bool amx;
  int most_rows;     ///< of a panel
  int together;      ///< tiles that are best multiplied together
  int panel_blocks;  ///< of a panel's rows that are made ready at once; a multiple of all chunk_blocks
  int n_tiles;       ///< of a part, of all products; gated, of the first
  int n_panels;      ///< of all parts
  int whole_panels;  ///< panels that aren't cut
  int cuts;          ///< units of each of the others
  int n_shares;      ///< of units

  int n_units() const { return whole_panels + (n_panels - whole_panels) * cuts; }
  int n_parts() const { return products.front().matrix->n_parts(); }
  int first_row(int part) const { return rows.begin ? rows.begin[part] : part * rows.n; }
  int n_rows(int part) const { return first_row(part + 1) - first_row(part); }
  /// Of a panel of the part.
  int panel_rows(int part) const;
  int n_panels_of(int part) const {
    const int each = panel_rows(part);
    return (n_rows(part) + each - 1) / each;
  }
};

/// As QuantMatrix::multiply() and multiply_gated() do it. gate: nullptr, or of the two products. What the spans point
/// to must outlive it.
QuantProducts cut_products(std::span<const QuantMatrix::Product> products, const QuantMatrix::Rows& rows,
                           const Gate* gate, int n_workers);

/// Rows [first_row, end_row), which are a part's, x tiles [first_tile, end_tile) of it, counted through all products.
struct QuantUnit {
  int part, first_row, end_row, first_tile, end_tile;
};

/// Finds units by their number; fast where it rises from call to call.
class UnitFinder {
 public:
  explicit UnitFinder(const QuantProducts& p) : p_(p) {}

  QuantUnit find(int index) {
    const bool whole = index < p_.whole_panels;
    const int panel = whole ? index : p_.whole_panels + (index - p_.whole_panels) / p_.cuts;
    const int cut = whole ? 0 : (index - p_.whole_panels) % p_.cuts, n = whole ? 1 : p_.cuts;
    if (panel < before_) part_ = 0, before_ = 0;
    for (int panels; panel >= before_ + (panels = p_.n_panels_of(part_)); ++part_) before_ += panels;
    const int each = p_.panel_rows(part_), first = p_.first_row(part_) + (panel - before_) * each;
    const auto border = [&](int i) {
      return std::min(p_.n_tiles,
                      static_cast<int>(std::int64_t{p_.n_tiles + p_.together - 1} / p_.together * i / n) * p_.together);
    };
    return {part_, first, std::min(p_.first_row(part_ + 1), first + each), border(cut), border(cut + 1)};
  }

 private:
  const QuantProducts& p_;
  int part_ = 0, before_ = 0;  ///< panels of the parts before
};

/// A tile's part of a product: y[n_rows][n_out] = plus + rows times n_blocks of the tile, n_out <= kTileOutputs.
struct TileProduct {
  QuantType type;
  const std::byte* tile;  ///< the first of its chunks
  int n_blocks, n_rows, n_out;
  const float* plus;  ///< y, something else, or nullptr
  float* y;
  std::ptrdiff_t stride, plus_stride;  ///< floats between rows of y, and of plus
};

/// Rows [first_row, + n_rows) of a part x blocks [first_block, + n_blocks) of a product, which are whole chunks.
struct UnitPart {
  int part, first_row, n_rows, first_block, n_blocks;

  TileProduct of(const QuantMatrix::Product& product, int tile) const {
    constexpr int kOut = QuantMatrix::kTileOutputs;
    const QuantMatrix& w = *product.matrix;
    const std::ptrdiff_t at = std::ptrdiff_t{first_row} * w.n_out() + std::ptrdiff_t{tile} * kOut;
    const PackedForm form = PackedForm::of(w.type());
    const std::ptrdiff_t tiles_before = std::ptrdiff_t{part} * w.n_tiles() + tile;
    const std::ptrdiff_t block = tiles_before * (w.n_in() / QuantMatrix::kBlock) + first_block;
    TileProduct t{.type = w.type(),
                  .tile = w.packed() + block / form.chunk_blocks * static_cast<std::ptrdiff_t>(form.chunk_bytes()),
                  .n_blocks = n_blocks,
                  .n_rows = n_rows,
                  .n_out = std::min(kOut, w.n_out() - tile * kOut),
                  .plus = nullptr,
                  .y = product.y + at,
                  .stride = w.n_out(),
                  .plus_stride = w.n_out()};
    if (first_block > 0) {
      t.plus = t.y;
    } else if (product.plus) {
      t.plus = product.plus + at;
    } else if (product.bias) {
      t.plus = product.bias + std::ptrdiff_t{part} * w.n_out() + std::ptrdiff_t{tile} * kOut;
      t.plus_stride = 0;
    }
    return t;
  }
};

/// Two tiles of the same rows, together if the kernel can.
template <class Kernel>
void multiply_two(Kernel& kernel, const TileProduct& a, const TileProduct& b) {
  if constexpr (requires { kernel.multiply_two(a, b); }) {
    kernel.multiply_two(a, b);
  } else {
    kernel.multiply(a);
    kernel.multiply(b);
  }
}

/// Goes through the units that a worker claims, p.panel_blocks at a time: kernel.round(part) makes the part's x ready,
/// unless the unit before had the same rows and all blocks fit; then kernel.multiply(tile product) is called for each
/// of the unit's tiles, or multiply_two() for two of them, and kernel.gate(tile product, the other one's y) for each
/// finished pair of gated ones.
template <class Kernel>
void each_unit(const QuantProducts& p, Claims& claims, Claims::Worker worker, Kernel& kernel) {
  const int all_blocks = p.n_in / QuantMatrix::kBlock;
  int rounded = -1;
  UnitFinder finder(p);
  Claims::Turn turn(claims, p.n_units(), p.n_shares, worker);
  for (int index; (index = turn.next()) < p.n_units();) {
    const QuantUnit unit = finder.find(index);
    for (int block = 0; block < all_blocks; block += p.panel_blocks) {
      const int n_blocks = std::min(p.panel_blocks, all_blocks - block);
      const UnitPart part{unit.part, unit.first_row, unit.end_row - unit.first_row, block, n_blocks};
      if (rounded != unit.first_row || n_blocks != all_blocks) kernel.round(part);
      rounded = unit.first_row;
      if (p.gate) {
        for (int t = unit.first_tile; t < unit.end_tile; ++t) {
          multiply_two(kernel, part.of(p.products[0], t), part.of(p.products[1], t));
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
        int t = std::max(unit.first_tile - before, 0);
        for (; t + 1 < end; t += 2) multiply_two(kernel, part.of(product, t), part.of(product, t + 1));
        if (t < end) kernel.multiply(part.of(product, t));
        before += n_tiles;
      }
    }
  }
}

/// Of a panel, at most. Up to kAmxFewRows take a block as soon as it is unpacked.
constexpr int kVectorPanelRows = 16, kAmxFewRows = 64, kAmxManyRows = 256;
/// With all inputs at once a tile is read from end to end: 8,192 inputs, in 240 KiB. A panel for AMX takes 4 to 16 KiB
/// a block.
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
    case QuantType::kMxfp4:
      return function.template operator()<QuantType::kMxfp4>();
    case QuantType::kBf16:  // GPUs only
      return;
  }
}

/// Whether this CPU has the instructions.
bool kernel_supports();

/// One worker. REQUIRES: kernel_supports(); panels of at most kVectorPanelRows x kVectorPanelBlocks.
void run_kernel(const QuantProducts& products, Claims& claims, Claims::Worker worker);

/// The same with NEON's products of bytes. REQUIRES: simd::neon_bytes() says so.
void run_neon_dotprod(const QuantProducts& products, Claims& claims, Claims::Worker worker);
void run_neon_i8mm(const QuantProducts& products, Claims& claims, Claims::Worker worker);

/// The same on AMX. REQUIRES: simd::amx(); panels of at most kAmxManyRows x kAmxPanelBlocks.
void run_amx(const QuantProducts& products, Claims& claims, Claims::Worker worker);

}  // namespace coppice::matmul
