#include "matmul/quant_matrix.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <new>
#include <utility>

#include "matmul/quant_file.h"
#include "matmul/quant_kernel.h"
#include "simd/target.h"

namespace coppice::matmul {

namespace {

constexpr int kBlock = QuantMatrix::kBlock;
constexpr int kTileOutputs = QuantMatrix::kTileOutputs;
constexpr int kGroup = 4;  // inputs whose products one instruction adds up

/// Units of a cut panel for each worker: more of them balance better, but each worker rounds every panel that it meets.
constexpr int kCutsPerWorker = 4;

/// Writes output `lane` of a tile's chunk, which is zeros there.
void pack_chunk(const PackedForm& form, const FileBlock& from, std::size_t lane, std::byte* to) {
  const auto put = [&](std::size_t at, std::uint8_t value) { to[at] |= std::byte{value}; };
  std::memcpy(to + lane * 2, &from.d, 2);
  if (form.has_min()) std::memcpy(to + form.min_at() + lane * 2, &from.m, 2);
  const auto n_scales = static_cast<std::size_t>(form.chunk_blocks * form.scales);
  for (std::size_t i = 0; i < n_scales; ++i) put(form.scales_at() + i * kTileOutputs + lane, from.s[i]);
  const auto n_mins = static_cast<std::size_t>(form.small_mins ? form.chunk_blocks : 0);
  for (std::size_t i = 0; i < n_mins; ++i) put(form.small_mins_at() + i * kTileOutputs + lane, from.t[i]);
  const int n_inputs = form.chunk_blocks * kBlock;
  for (int i = 0; i < n_inputs; ++i) {
    const int block = i / kBlock, group = i % kBlock / kGroup;
    const std::size_t at = form.blocks_at() + static_cast<std::size_t>(block) * form.block_bytes() + lane * kGroup +
                           static_cast<std::size_t>(i % kGroup);
    const auto vector = [&](int index) { return at + static_cast<std::size_t>(index) * PackedForm::kGroupBytes; };
    const int q = from.q[static_cast<std::size_t>(i)];
    if (form.bits == 8) {
      put(vector(group), static_cast<std::uint8_t>(q));
      continue;
    }
    put(vector(group / 2), static_cast<std::uint8_t>((q & 15) << group % 2 * 4));
    if (form.bits == 5) put(vector(4), static_cast<std::uint8_t>(q >> 4 << group));
    if (form.bits == 6) put(vector(4 + group / 4), static_cast<std::uint8_t>(q >> 4 << group % 4 * 2));
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
  assert(
      std::ranges::all_of(products, [&](const QuantMatrix::Product& p) { return p.matrix->n_in() == first.n_in(); }));
  const bool amx = rows.n >= kAmxRows && simd::amx();
  QuantProducts p{.n_in = first.n_in(),
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

bool QuantMatrix::supported() {
  return kernel_supports();
}

int QuantMatrix::file_block(QuantType type) {
  return PackedForm::of(type).chunk_blocks * kBlock;
}

QuantMatrix::QuantMatrix(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks)
    : type_(type), n_in_(n_in), n_out_(n_out) {
  const PackedForm form = PackedForm::of(type);
  const std::size_t from_bytes = file_bytes(type), to_bytes = form.chunk_bytes();
  const auto n_chunks = static_cast<std::size_t>(n_in / file_block(type));
  assert(n_in % file_block(type) == 0 && blocks.size() == n_chunks * static_cast<std::size_t>(n_out) * from_bytes);
  bytes_ = static_cast<std::size_t>(n_tiles()) * n_chunks * to_bytes;
  packed_ = hwy::AllocateAligned<std::byte>(bytes_);
  if (!packed_) throw std::bad_alloc();
  std::memset(packed_.get(), 0, bytes_);
  FileBlock block{};
  for (int o = 0; o < n_out; ++o) {
    const std::byte* from = blocks.data() + static_cast<std::size_t>(o) * n_chunks * from_bytes;
    std::byte* to = packed_.get() + static_cast<std::size_t>(o / kTileOutputs) * n_chunks * to_bytes;
    for (std::size_t c = 0; c < n_chunks; ++c, from += from_bytes, to += to_bytes) {
      read_block(type, from, block);
      pack_chunk(form, block, static_cast<std::size_t>(o % kTileOutputs), to);
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
