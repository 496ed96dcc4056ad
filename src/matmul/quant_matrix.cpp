#include "matmul/quant_matrix.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "matmul/quant_kernel.h"
#include "simd/target.h"

namespace coppice::matmul {

namespace {

constexpr int kBlock = QuantMatrix::kBlock;
constexpr int kTileOutputs = QuantMatrix::kTileOutputs;
constexpr int kGroup = 4;  // inputs whose products one instruction adds up

/// Units of a cut panel for each worker: more of them balance better, but each worker rounds every panel that it meets.
constexpr int kCutsPerWorker = 4;

/// What the file has: f16 d, f16 m (Q4_1 only), then q. Low halves of 4-bit bytes are inputs 0-15, high ones 16-31.
struct FileBlock {
  std::size_t q, size;  ///< offset of q

  static FileBlock of(QuantType type) {
    switch (type) {
      case QuantType::kQ4_0:
        return {2, 18};
      case QuantType::kQ4_1:
        return {4, 20};
      case QuantType::kQ8_0:
        break;
    }
    return {2, 34};
  }
};

/// q of input i in a block of the file, not negative.
std::uint8_t file_q(QuantType type, const std::byte* q, int i) {
  if (type == QuantType::kQ8_0) return static_cast<std::uint8_t>(std::to_integer<int>(q[i]) ^ 128);
  const int pair = std::to_integer<int>(q[i % (kBlock / 2)]);
  return static_cast<std::uint8_t>(i < kBlock / 2 ? pair & 15 : pair >> 4);
}

/// Writes output `lane` of a tile's block.
void pack_block(QuantType type, const std::byte* from, int lane, std::byte* to) {
  const auto file = FileBlock::of(type);
  const auto tile = TileBlock::of(type);
  const auto at = static_cast<std::size_t>(lane);
  std::memcpy(to + at * 2, from, 2);
  if (type == QuantType::kQ4_1) std::memcpy(to + tile.m + at * 2, from + 2, 2);
  for (int i = 0; i < kBlock; ++i) {
    const int group = i / kGroup;
    const bool halves = type != QuantType::kQ8_0;
    const auto vector = static_cast<std::size_t>(halves ? group / 2 : group);
    const auto q = std::byte{file_q(type, from + file.q, i)};
    to[tile.q + (vector * kTileOutputs + at) * kGroup + static_cast<std::size_t>(i % kGroup)] |=
        halves && group % 2 == 1 ? q << 4 : q;
  }
}

/// Of a panel: as few panels as possible, of nearly the same size.
int panel_rows(int n_rows, bool amx) {
  if (!amx) return kVectorPanelRows;
  const int panels = (n_rows + kAmxPanelRows - 1) / kAmxPanelRows, rows = (n_rows + panels - 1) / panels;
  return (rows + kVectorPanelRows - 1) / kVectorPanelRows * kVectorPanelRows;
}

void run(std::span<const QuantMatrix::Product> products, const QuantMatrix::Rows& rows, bool gated, Claims& claims,
         int n_workers) {
  const QuantMatrix& first = *products.front().matrix;
  assert(std::ranges::all_of(products, [&](const QuantMatrix::Product& p) {
    return p.matrix->type() == first.type() && p.matrix->n_in() == first.n_in();
  }));
  const bool amx = rows.n >= kAmxRows && simd::amx();
  QuantProducts p{.type = first.type(),
                  .n_in = first.n_in(),
                  .products = products,
                  .rows = rows,
                  .gated = gated,
                  .panel_rows = panel_rows(rows.n, amx),
                  .n_tiles = 0,
                  .whole_panels = 0,
                  .cuts = 1};
  for (const QuantMatrix::Product& product : products.first(gated ? 1 : products.size())) {
    p.n_tiles += product.matrix->n_tiles();
  }
  const int panels = p.n_panels(), last = panels <= 2 * n_workers ? panels : panels % n_workers;
  if (last > 0) {
    // Where a panel's blocks don't fit at once, every unit rounds its rows again.
    const int per_worker = first.n_in() / kBlock <= QuantMatrix::kBlocksAtOnce ? kCutsPerWorker : 1;
    p.whole_panels = panels - last;
    p.cuts = std::min(p.n_tiles, (per_worker * n_workers + last - 1) / last);
  } else {
    p.whole_panels = panels;
  }
  (amx ? run_amx : run_kernel)(p, claims, n_workers);
}

}  // namespace

bool QuantMatrix::supports(QuantType type) {
  return kernel_supports(type);
}

QuantMatrix::QuantMatrix(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks)
    : type_(type), n_in_(n_in), n_out_(n_out) {
  const auto file = FileBlock::of(type);
  const auto tile = TileBlock::of(type);
  const auto n_blocks = static_cast<std::size_t>(n_in / kBlock);
  assert(n_in % kBlock == 0 && blocks.size() == n_blocks * static_cast<std::size_t>(n_out) * file.size);
  bytes_ = static_cast<std::size_t>(n_tiles()) * n_blocks * tile.size;
  packed_ = hwy::AllocateAligned<std::byte>(bytes_);
  if (!packed_) throw std::bad_alloc();
  std::memset(packed_.get(), 0, bytes_);
  for (int o = 0; o < n_out; ++o) {
    const auto tile_begin = static_cast<std::size_t>(o / kTileOutputs) * n_blocks;
    for (std::size_t b = 0; b < n_blocks; ++b) {
      pack_block(type, blocks.data() + (static_cast<std::size_t>(o) * n_blocks + b) * file.size, o % kTileOutputs,
                 packed_.get() + (tile_begin + b) * tile.size);
    }
  }
}

void QuantMatrix::multiply(std::span<const Product> products, const Rows& rows, Claims& claims, int n_workers) {
  run(products, rows, false, claims, n_workers);
}

void QuantMatrix::multiply_gated(const Product& gate, const Product& up, const Rows& rows, Claims& claims,
                                 int n_workers) {
  assert(gate.matrix->n_out_ == up.matrix->n_out_ && !gate.plus && !up.plus);
  const std::array both = {gate, up};
  run(both, rows, true, claims, n_workers);
}

}  // namespace coppice::matmul
