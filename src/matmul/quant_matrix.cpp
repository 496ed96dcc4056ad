#include "matmul/quant_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "check/assert.h"
#include "matmul/quant_file.h"
#include "matmul/quant_kernel.h"
#include "simd/target.h"

namespace coppice::matmul {

namespace {

constexpr int kBlock = QuantMatrix::kBlock;
constexpr int kTileOutputs = QuantMatrix::kTileOutputs;
constexpr int kGroup = 4;  // inputs whose products one instruction adds up

/// Units of a cut panel for each worker: small ones, so that nobody waits long for the last one. Those of a share are
/// neighbours, and their rows are rounded once.
constexpr int kCutsPerWorker = 16;

/// Writes output `lane` of a tile's block of 32 inputs. q: theirs. Four of them at a time, as the bytes of a word.
void pack_inputs(const PackedForm& form, const std::uint8_t* q, std::size_t lane, std::byte* to) {
  constexpr int kGroups = kBlock / kGroup;
  std::array<std::uint32_t, kGroups> words, high{};
  std::memcpy(words.data(), q, sizeof words);
  const auto put = [&](int vector, std::uint32_t word) {
    std::memcpy(to + static_cast<std::size_t>(vector) * PackedForm::kGroupBytes + lane * kGroup, &word, sizeof word);
  };
  if (form.bits == 8) {
    for (int g = 0; g < kGroups; ++g) put(g, words[static_cast<std::size_t>(g)]);
    return;
  }
  const int high_bits = form.bits - 4, groups_each = high_bits == 2 ? 4 : 8;
  for (int g = 0; g < kGroups; ++g) {
    const std::uint32_t upper = words[static_cast<std::size_t>(g)] >> 4 & 0x0F0F0F0F;
    high[static_cast<std::size_t>(g / groups_each)] |= upper << g % groups_each * high_bits;
  }
  for (std::size_t g = 0; g < kGroups; g += 2) {
    put(static_cast<int>(g) / 2, (words[g] & 0x0F0F0F0F) | (words[g + 1] & 0x0F0F0F0F) << 4);
  }
  for (int i = 0; i < high_bits; ++i) put(4 + i, high[static_cast<std::size_t>(i)]);
}

/// Writes output `lane` of a tile's chunk.
void pack_chunk(const PackedForm& form, const FileBlock& from, std::size_t lane, std::byte* to) {
  if (form.powers) {
    to[lane] = std::byte(std::max(from.d - 1, 0));  // the file's exponent is 128 too large, that of f32 127
  } else {
    std::memcpy(to + lane * 2, &from.d, 2);
  }
  if (form.has_min()) std::memcpy(to + form.min_at() + lane * 2, &from.m, 2);
  const auto n_blocks = static_cast<std::size_t>(form.chunk_blocks);
  const auto n_scales = n_blocks * static_cast<std::size_t>(form.scales), n_mins = form.small_mins ? n_blocks : 0;
  for (std::size_t i = 0; i < n_scales; ++i) to[form.scales_at() + i * kTileOutputs + lane] = std::byte{from.s[i]};
  for (std::size_t i = 0; i < n_mins; ++i) to[form.small_mins_at() + i * kTileOutputs + lane] = std::byte{from.t[i]};
  for (std::size_t i = 0; i < n_blocks; ++i) {
    pack_inputs(form, from.q.data() + i * kBlock, lane, to + form.blocks_at() + i * form.block_bytes());
  }
}

/// Units of a product of several parts for each worker, or more: parts have rows of very different numbers.
constexpr int kPartUnitsPerWorker = 16;

/// Sets whole_panels and cuts.
void cut_panels(QuantProducts& p, int n_workers) {
  p.whole_panels = p.n_panels, p.cuts = 1;
  const int most = (p.n_tiles + p.together - 1) / p.together;
  if (p.rows.begin) {
    const int wanted = kPartUnitsPerWorker * n_workers;
    if (p.n_panels == 0 || p.n_panels >= wanted) return;
    p.whole_panels = 0;
    p.cuts = std::min(most, (wanted + p.n_panels - 1) / p.n_panels);
    return;
  }
  const int last = p.n_panels <= 2 * n_workers ? p.n_panels : p.n_panels % n_workers;
  if (last == 0) return;
  // Where a panel's blocks don't fit at once, every unit rounds its rows again.
  const int per_worker = p.n_in / kBlock <= p.panel_blocks ? kCutsPerWorker : 1;
  p.whole_panels -= last;
  p.cuts = std::min(most, (per_worker * n_workers + last - 1) / last);
}

/// Whether AMX is the faster one, or wanted for its roundings: by the rows that a part has on average, if it has any.
bool amx_pays(const QuantMatrix::Rows& rows, int n_parts) {
  if (rows.alike) return simd::amx();
  int parts = 0;
  for (int i = 0; rows.begin && i < n_parts; ++i) parts += rows.begin[i + 1] > rows.begin[i] ? 1 : 0;
  return rows.n >= kAmxRows * std::max(parts, 1) && simd::amx();
}

/// Of a panel. Weights are unpacked once for each, but every worker makes a panel's rows ready for itself: many pay
/// only where each worker has as many (2,048 rows on 16 threads were a twentieth slower in panels of 128:
/// bench/notes.md).
int most_amx_rows(int n_rows, int n_workers) {
  return n_rows / n_workers >= kAmxManyRows ? kAmxManyRows : kAmxFewRows;
}

void run(std::span<const QuantMatrix::Product> products, const QuantMatrix::Rows& rows, const Gate* gate,
         Claims& claims, Claims::Worker worker) {
  const QuantProducts p = cut_products(products, rows, gate, worker.n);
  (p.amx ? run_amx : run_kernel)(p, claims, worker);
}

}  // namespace

QuantProducts cut_products(std::span<const QuantMatrix::Product> products, const QuantMatrix::Rows& rows,
                           const Gate* gate, int n_workers) {
  const QuantMatrix& first = *products.front().matrix;
  COPPICE_ASSERT(std::ranges::all_of(products, [&](const QuantMatrix::Product& p) {
    return p.matrix->n_in() == first.n_in() && p.matrix->n_parts() == first.n_parts() && !(p.plus && p.bias);
  }));
  COPPICE_ASSERT(rows.begin || first.n_parts() == 1);
  const bool amx = amx_pays(rows, first.n_parts());
  QuantProducts p{.n_in = first.n_in(),
                  .products = products,
                  .rows = rows,
                  .gate = gate,
                  .amx = amx,
                  .most_rows = amx ? most_amx_rows(rows.n, n_workers) : kVectorPanelRows,
                  .together = 1,
                  .panel_blocks = amx ? kAmxPanelBlocks : kVectorPanelBlocks,
                  .n_tiles = 0,
                  .n_panels = 0,
                  .whole_panels = 0,
                  .cuts = 1,
                  .n_shares = 1};
  for (const QuantMatrix::Product& product : products.first(gate ? 1 : products.size())) {
    p.n_tiles += product.matrix->n_tiles();
  }
  for (int part = 0; part < first.n_parts(); ++part) p.n_panels += p.n_panels_of(part);
  if (p.most_rows > kAmxFewRows) p.together = 2;
  cut_panels(p, n_workers);
  // Units of one size. Others are taken in their order: the small ones come last, and nobody waits long.
  if (p.whole_panels == 0) p.n_shares = std::min(n_workers, Claims::kMostShares);
  return p;
}

/// As few panels as possible, of nearly the same size.
int QuantProducts::panel_rows(int part) const {
  if (!amx) return kVectorPanelRows;
  const int n = std::max(n_rows(part), 1), panels = (n + most_rows - 1) / most_rows;
  const int each = (n + panels - 1) / panels;
  return (each + kVectorPanelRows - 1) / kVectorPanelRows * kVectorPanelRows;
}

bool QuantMatrix::supported() {
  return kernel_supports();
}

int QuantMatrix::file_block(QuantType type) {
  return PackedForm::of(type).chunk_blocks * kBlock;
}

QuantMatrix::QuantMatrix(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks, int n_parts,
                         std::size_t stride, PackedMemory* memory)
    : type_(type), n_in_(n_in), n_out_(n_out), n_parts_(n_parts) {
  COPPICE_ASSERT(n_in % file_block(type) == 0);
  bytes_ = static_cast<std::size_t>(n_parts) * static_cast<std::size_t>(n_tiles()) * tile_bytes();
  if (memory) {
    packed_ = memory->take(bytes_).data();
  } else {
    own_ = hwy::AllocateAligned<std::byte>(bytes_);
    if (!own_) throw std::bad_alloc();
    packed_ = own_.get();
  }
  pack(blocks, stride);
}

std::size_t QuantMatrix::tile_bytes() const {
  return static_cast<std::size_t>(n_in_ / file_block(type_)) * PackedForm::of(type_).chunk_bytes();
}

void QuantMatrix::pack(std::span<const std::byte> blocks, std::size_t stride) {
  const PackedForm form = PackedForm::of(type_);
  const std::size_t from_bytes = file_bytes(type_), to_bytes = form.chunk_bytes();
  const auto n_chunks = static_cast<std::size_t>(n_in_ / file_block(type_));
  const std::size_t matrix_bytes = n_chunks * static_cast<std::size_t>(n_out_) * from_bytes;
  if (stride == 0) stride = matrix_bytes;
  COPPICE_ASSERT(blocks.size() == static_cast<std::size_t>(n_parts_ - 1) * stride + matrix_bytes);
  const std::size_t part_bytes = static_cast<std::size_t>(n_tiles()) * tile_bytes();
  FileBlock block{};
  for (int part = 0; part < n_parts_; ++part) {
    const std::byte* from = blocks.data() + static_cast<std::size_t>(part) * stride;
    std::byte* first = packed_ + static_cast<std::size_t>(part) * part_bytes;
    // The last tile is the only one that may have outputs beyond n_out.
    std::memset(first + part_bytes - tile_bytes(), 0, tile_bytes());
    for (int o = 0; o < n_out_; ++o) {
      std::byte* to = first + static_cast<std::size_t>(o / kTileOutputs) * tile_bytes();
      for (std::size_t c = 0; c < n_chunks; ++c, from += from_bytes, to += to_bytes) {
        read_block(type_, from, block);
        pack_chunk(form, block, static_cast<std::size_t>(o % kTileOutputs), to);
      }
    }
  }
}

void QuantMatrix::multiply(std::span<const Product> products, const Rows& rows, Claims& claims, Claims::Worker worker) {
  run(products, rows, nullptr, claims, worker);
}

void QuantMatrix::multiply_gated(Gate gate, const Product& gates, const Product& up, const Rows& rows, Claims& claims,
                                 Claims::Worker worker) {
  COPPICE_ASSERT(gates.matrix->n_out_ == up.matrix->n_out_ && !gates.plus && !up.plus);
  const std::array both = {gates, up};
  run(both, rows, &gate, claims, worker);
}

}  // namespace coppice::matmul
