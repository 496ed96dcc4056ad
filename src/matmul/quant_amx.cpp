// Tiles of 16 outputs times panels of rows with AMX. A block's weights become bf16 once for all rows of the panel, d
// and m included, so that the sums stay in AMX tiles from a row's first input to its last and need no scaling. x
// becomes bf16, too: 8 bits of each value, where dot products of bytes have 8 bits of the largest of 32. Figures:
// docs/decisions.md, "Many rows on AMX".
//
// Few rows are multiplied by a block as soon as it is unpacked. With more, two tiles are unpacked to their end, and
// then rows go by, 32 at a time: each AMX tile that is loaded has two products.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "matmul/quant_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "matmul/quant_amx.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "simd/kernel-inl.h"

// After it.
#include "matmul/quant_rows-inl.h"
#include "matmul/quant_unpack-inl.h"
#include "simd/amx-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::HWY_NAMESPACE {

// Other files have functions of these names.
namespace {

using simd::HWY_NAMESPACE::kTileRow;
using simd::HWY_NAMESPACE::load_tile;
using simd::HWY_NAMESPACE::multiply_tiles;
using simd::HWY_NAMESPACE::store_tile;
using simd::HWY_NAMESPACE::zero_tile;

constexpr int kTileRows = 16;                             ///< of x in an AMX tile
constexpr std::ptrdiff_t kTileSize = kTileRows * kBlock;  ///< bf16

constexpr int kGroupRows = 2 * kTileRows;  ///< of many, multiplied at a time

/// For each block and each 16 rows an AMX tile: a row for each of them. Rows that aren't there are zeros. Few rows lie
/// block by block; many in groups of kGroupRows, and these block by block.
struct AmxPanel {
  alignas(64) std::uint16_t x[kAmxManyRows / kTileRows * kAmxPanelBlocks * kTileSize];
};

inline void fill_panel(const QuantProducts& p, const UnitPart& part, AmxPanel& panel) {
  float factors[kAmxManyRows];
  for (int row = 0; row < part.n_rows; ++row) factors[row] = row_factor(p, part.first_row + row);
  const int together = part.n_rows <= kAmxFewRows ? kAmxFewRows : kGroupRows;
  std::uint16_t* to = panel.x;
  for (int first = 0; first < part.n_rows; first += together) {
    const int end = std::min(first + together, part.n_rows);
    // Block by block: what is written lies in order, which is a tenth of a step of 16 rows on 16 threads.
    for (int b = 0; b < part.n_blocks; ++b) {
      int row = first;
      for (; row < end; ++row, to += kBlock) {
        alignas(64) float buffer[kBlock];
        const float* x = block_of_row(p, part.first_row + row, part.first_block + b, factors[row], buffer);
        _mm512_store_si512(to, simd::HWY_NAMESPACE::bf16_of(_mm512_loadu_ps(x + kBlock / 2), _mm512_loadu_ps(x)));
      }
      for (; row % kTileRows != 0; ++row, to += kBlock) _mm512_store_si512(to, _mm512_setzero_si512());
    }
  }
}

/// A weight is number * d + m.
struct Scaling {
  __m512 d, m;

  /// Weights are cut to bf16, not rounded, which takes three instructions less of ten for each two. It makes them
  /// smaller, by 0.28 % on average, and so they are made larger before. Errors are 5 % larger than those of rounding.
  static constexpr float kLost = 1.0028F;

  /// Of a block's half, if halves differ.
  template <QuantType Type>
  static HWY_INLINE Scaling of(const ChunkScales<Type>& scales, int block, int half) {
    constexpr PackedForm form = PackedForm::of(Type);
    const __m512 lost = _mm512_set1_ps(kLost), d = _mm512_mul_ps(scales.scale(block, half).raw, lost);
    if constexpr (form.has_min()) return {d, _mm512_mul_ps(scales.min(block).raw, lost)};
    if constexpr (form.table) return {d, _mm512_setzero_ps()};
    return {d, _mm512_mul_ps(d, _mm512_set1_ps(-static_cast<float>(form.zero)))};
  }
};

/// The upper halves of both, as pairs: a's in the lower halves of the lanes.
HWY_INLINE __m512i pairs_of(__m512 a, __m512 b) {
  const __m512i upper = _mm512_set4_epi32(0x00000F0E, 0x00000B0A, 0x00000706, 0x00000302);
  return _mm512_mask_shuffle_epi8(_mm512_castps_si512(b), 0x3333333333333333, _mm512_castps_si512(a), upper);
}

/// What the lowest four bits of a q stand for, of types with no more bits.
template <QuantType Type>
HWY_INLINE __m512 numbers_of_halves() {
  if constexpr (!PackedForm::of(Type).table) {
    return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  }
  const __m512i table = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table_of(Type).data())));
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(table, _mm512_set1_epi32(PackedForm::of(Type).zero)));
}

/// A block's weights as an AMX tile: row i has inputs 2 i and 2 i + 1 of each output.
template <QuantType Type>
HWY_INLINE void unpack_block(const std::byte* chunk, const ChunkScales<Type>& scales, int block, std::uint16_t* tile) {
  constexpr PackedForm form = PackedForm::of(Type);
  constexpr bool halves = form.bits == 4;
  prefetch_block<Type>(chunk, block);
  const std::byte* at = chunk + form.blocks_at() + static_cast<std::size_t>(block) * form.block_bytes();
  const __m512 numbers = numbers_of_halves<Type>();
  hn::Vec<U8> bytes[kGroups];
  if constexpr (!halves) unpack<Type>(at, bytes);
  Scaling scaling = Scaling::of<Type>(scales, block, 0);
  HWY_UNROLL(8)
  for (int group = 0; group < kGroups; ++group) {
    if (form.scales == 2 && group == kGroups / 2) scaling = Scaling::of<Type>(scales, block, 1);
    const __m512i four = halves ? _mm512_loadu_si512(at + group / 2 * 64) : bytes[group].raw;
    const auto weight = [&](int input) HWY_ATTR {
      const auto shift = static_cast<unsigned>(8 * input + (halves ? group % 2 * 4 : 0));
      const __m512i bits = _mm512_srli_epi32(four, shift);
      // A lookup of a number sees the lowest four bits only.
      const __m512 number = halves ? _mm512_permutexvar_ps(bits, numbers)
                                   : _mm512_cvtepi32_ps(_mm512_and_si512(bits, _mm512_set1_epi32(255)));
      return _mm512_fmadd_ps(number, scaling.d, scaling.m);
    };
    _mm512_store_si512(tile, pairs_of(weight(0), weight(1)));
    _mm512_store_si512(tile + 2 * kOut, pairs_of(weight(2), weight(3)));
    tile += 4 * kOut;
  }
}

/// A tile's blocks, one after the other.
template <QuantType Type>
class BlockReader {
 public:
  HWY_INLINE explicit BlockReader(const std::byte* tile) : chunk_(tile), scales_(tile, 0) {}

  HWY_INLINE void next(std::uint16_t* tile) {
    constexpr PackedForm form = PackedForm::of(Type);
    if (block_ == form.chunk_blocks) {
      chunk_ += form.chunk_bytes();
      scales_ = ChunkScales<Type>(chunk_, 0);
      block_ = 0;
    }
    unpack_block<Type>(chunk_, scales_, block_++, tile);
  }

 private:
  const std::byte* chunk_;
  ChunkScales<Type> scales_;
  int block_ = 0;
};

/// AMX tiles 0 to RowTiles - 1 += rows times a block's weights.
template <int RowTiles>
HWY_INLINE void multiply_block(const std::uint16_t* x, const std::uint16_t* weights) {
  load_tile<4>(weights, kTileRow);
  load_tile<5>(x, kTileRow);
  multiply_tiles<0, 5, 4>();
  if constexpr (RowTiles > 1) {
    load_tile<6>(x + kTileSize, kTileRow);
    multiply_tiles<1, 6, 4>();
  }
  if constexpr (RowTiles > 2) {
    load_tile<7>(x + 2 * kTileSize, kTileRow);
    multiply_tiles<2, 7, 4>();
  }
  if constexpr (RowTiles > 3) {
    load_tile<5>(x + 3 * kTileSize, kTileRow);
    multiply_tiles<3, 5, 4>();
  }
}

/// Where the sums of a row tile are loaded from and stored to: AMX tile I.
template <int I>
HWY_INLINE void load_sums(const float* from, std::ptrdiff_t stride) {
  load_tile<I>(from + I * kTileRows * stride, stride * std::ptrdiff_t{sizeof(float)});
}
template <int I>
HWY_INLINE void store_sums(float* to, std::ptrdiff_t stride) {
  store_tile<I>(to + I * kTileRows * stride, stride * std::ptrdiff_t{sizeof(float)});
}

/// y[RowTiles * 16][16] = `plus` + the panel times a tile's blocks. Strides: floats between rows. plus may be y or
/// nullptr.
template <QuantType Type, int RowTiles>
void multiply_tile(const std::byte* tile, int n_blocks, const AmxPanel& panel, const float* plus,
                   std::ptrdiff_t plus_stride, float* y, std::ptrdiff_t stride) {
  alignas(64) std::uint16_t weights[2][kTileSize];
  BlockReader<Type> blocks(tile);
  if (plus) {
    load_sums<0>(plus, plus_stride);
    if constexpr (RowTiles > 1) load_sums<1>(plus, plus_stride);
    if constexpr (RowTiles > 2) load_sums<2>(plus, plus_stride);
    if constexpr (RowTiles > 3) load_sums<3>(plus, plus_stride);
  } else {
    zero_tile<0>();
    zero_tile<1>();
    zero_tile<2>();
    zero_tile<3>();
  }
  blocks.next(weights[0]);
  for (int b = 1; b < n_blocks; ++b) {
    // Before the product of the one before: a tile that vectors have just stored takes long to load.
    blocks.next(weights[b % 2]);
    multiply_block<RowTiles>(panel.x + (b - 1) * RowTiles * kTileSize, weights[(b - 1) % 2]);
  }
  multiply_block<RowTiles>(panel.x + (n_blocks - 1) * RowTiles * kTileSize, weights[(n_blocks - 1) % 2]);
  store_sums<0>(y, stride);
  if constexpr (RowTiles > 1) store_sums<1>(y, stride);
  if constexpr (RowTiles > 2) store_sums<2>(y, stride);
  if constexpr (RowTiles > 3) store_sums<3>(y, stride);
}

template <QuantType Type>
void multiply_few(const TileProduct& t, const AmxPanel& panel) {
  static constexpr std::array functions = {multiply_tile<Type, 1>, multiply_tile<Type, 2>, multiply_tile<Type, 3>,
                                           multiply_tile<Type, 4>};
  const auto function = functions[static_cast<std::size_t>((t.n_rows + kTileRows - 1) / kTileRows - 1)];
  if (t.n_out == kOut && t.n_rows % kTileRows == 0) {
    return function(t.tile, t.n_blocks, panel, t.plus, t.plus_stride, t.y, t.stride);
  }
  // Rows or outputs are missing.
  alignas(64) float sums[kAmxFewRows * kOut] = {};
  const auto there = static_cast<__mmask16>((1U << t.n_out) - 1);
  for (int r = 0; t.plus && r < t.n_rows; ++r) {
    _mm512_store_ps(sums + r * kOut, _mm512_maskz_loadu_ps(there, t.plus + r * t.plus_stride));
  }
  function(t.tile, t.n_blocks, panel, sums, kOut, sums, kOut);
  for (int r = 0; r < t.n_rows; ++r) _mm512_mask_storeu_ps(t.y + r * t.stride, there, _mm512_load_ps(sums + r * kOut));
}

/// AMX tile T := what 16 rows' sums of a tile begin with. buffer: an AMX tile.
template <int T>
HWY_INLINE void begin_sums(const TileProduct& t, int row, float* buffer) {
  if (!t.plus) return zero_tile<T>();
  const float* plus = t.plus + row * t.plus_stride;
  if (t.n_out == kOut && row + kTileRows <= t.n_rows) {
    return load_tile<T>(plus, t.plus_stride * std::ptrdiff_t{sizeof(float)});
  }
  const auto there = static_cast<__mmask16>((1U << t.n_out) - 1);
  for (int i = 0; i < std::min(kTileRows, t.n_rows - row); ++i) {
    _mm512_store_ps(buffer + i * kOut, _mm512_maskz_loadu_ps(there, plus + i * t.plus_stride));
  }
  load_tile<T>(buffer, kTileRow);
}

/// y := AMX tile T, as far as it is there.
template <int T>
HWY_INLINE void end_sums(const TileProduct& t, int row, float* buffer) {
  float* y = t.y + row * t.stride;
  if (t.n_out == kOut && row + kTileRows <= t.n_rows) {
    return store_tile<T>(y, t.stride * std::ptrdiff_t{sizeof(float)});
  }
  store_tile<T>(buffer, kTileRow);
  const auto there = static_cast<__mmask16>((1U << t.n_out) - 1);
  for (int i = 0; i < std::min(kTileRows, t.n_rows - row); ++i) {
    _mm512_mask_storeu_ps(y + i * t.stride, there, _mm512_load_ps(buffer + i * kOut));
  }
}

/// Asks for the lines of a group's sums while its products run: an AMX tile is stored to L1 in 6 ns, to L2 in 22
/// (docs/decisions.md, "Many rows on AMX").
class SumsAhead {
 public:
  HWY_INLINE SumsAhead(const TileProduct* t, int n_tiles, int row)
      : t_(t), n_tiles_(n_tiles), row_(row), end_(std::min(row + kGroupRows, t->n_rows)) {
    at_once_ = ((end_ - row_) * n_tiles + t->n_blocks - 1) / t->n_blocks;
  }
  /// Of the n_blocks calls each asks for as many lines.
  HWY_INLINE void ask() {
    for (int i = 0; i < at_once_ && row_ < end_; ++i) {
      const TileProduct& t = t_[tile_];
      const float* y = t.y + row_ * t.stride;
      asm volatile("prefetchw %0" ::"m"(*y));
      if (t.plus && t.plus != t.y && row_ + kGroupRows < t.n_rows) {
        __builtin_prefetch(t.plus + (row_ + kGroupRows) * t.plus_stride);
      }
      if (++tile_ == n_tiles_) tile_ = 0, ++row_;
    }
  }

 private:
  const TileProduct* t_;
  int n_tiles_, row_, end_, at_once_ = 0, tile_ = 0;
};

/// A group of rows, of RowTiles AMX tiles, times Tiles tiles, which are unpacked.
template <int RowTiles, int Tiles>
void multiply_group(const TileProduct* t, int row, const std::uint16_t* x, const std::uint16_t* first,
                    const std::uint16_t* second) {
  alignas(64) float buffer[kTileRows * kOut] = {};
  begin_sums<0>(t[0], row, buffer);
  if constexpr (Tiles > 1) begin_sums<1>(t[1], row, buffer);
  if constexpr (RowTiles > 1) begin_sums<2>(t[0], row + kTileRows, buffer);
  if constexpr (RowTiles > 1 && Tiles > 1) begin_sums<3>(t[1], row + kTileRows, buffer);
  SumsAhead ahead(t, Tiles, row);
  for (int b = 0; b < t->n_blocks; ++b, x += RowTiles * kTileSize, first += kTileSize, second += kTileSize) {
    ahead.ask();
    // Loads first: where another program runs on the core's other thread, a load waits for all products before it.
    load_tile<4>(x, kTileRow);
    if constexpr (RowTiles > 1) load_tile<5>(x + kTileSize, kTileRow);
    load_tile<6>(first, kTileRow);
    if constexpr (Tiles > 1) load_tile<7>(second, kTileRow);
    multiply_tiles<0, 4, 6>();
    if constexpr (Tiles > 1) multiply_tiles<1, 4, 7>();
    if constexpr (RowTiles > 1) multiply_tiles<2, 5, 6>();
    if constexpr (RowTiles > 1 && Tiles > 1) multiply_tiles<3, 5, 7>();
  }
  end_sums<0>(t[0], row, buffer);
  if constexpr (Tiles > 1) end_sums<1>(t[1], row, buffer);
  if constexpr (RowTiles > 1) end_sums<2>(t[0], row + kTileRows, buffer);
  if constexpr (RowTiles > 1 && Tiles > 1) end_sums<3>(t[1], row + kTileRows, buffer);
}

/// Blocks of some tiles, one after the other.
struct UnpackedTiles {
  alignas(64) std::uint16_t weights[2][kAmxPanelBlocks * kTileSize];
};

inline void unpack_tile(const TileProduct& t, std::uint16_t* to) {
  with_type(t.type, [&]<QuantType Type>() {
    BlockReader<Type> blocks(t.tile);
    for (int b = 0; b < t.n_blocks; ++b) blocks.next(to + b * kTileSize);
  });
}

/// All rows of a panel times one tile or two.
template <int Tiles>
void multiply_many(const UnitPart& part, const TileProduct* t, const AmxPanel& panel, UnpackedTiles& unpacked) {
  for (int i = 0; i < Tiles; ++i) unpack_tile(t[i], unpacked.weights[i]);
  for (int row = 0; row < part.n_rows; row += kGroupRows) {
    const std::uint16_t* x = panel.x + std::ptrdiff_t{row / kTileRows} * part.n_blocks * kTileSize;
    const bool whole = row + kTileRows < part.n_rows;
    (whole ? multiply_group<2, Tiles> : multiply_group<1, Tiles>)(t, row, x, unpacked.weights[0], unpacked.weights[1]);
  }
}

struct AmxKernel {
  const QuantProducts& products;
  UnitPart part = {};  ///< in the panel
  AmxPanel panel;
  UnpackedTiles unpacked;

  explicit AmxKernel(const QuantProducts& p) : products(p) {}  // the panel is too large to be zeroed for nothing
  void round(const UnitPart& rows) {
    part = rows;
    fill_panel(products, part, panel);
  }
  void multiply(const TileProduct& t) {
    if (part.n_rows > kAmxFewRows) return multiply_many<1>(part, &t, panel, unpacked);
    with_type(t.type, [&]<QuantType Type>() { multiply_few<Type>(t, panel); });
  }
  void multiply_two(const TileProduct& a, const TileProduct& b) {
    if (part.n_rows <= kAmxFewRows) return multiply(a), multiply(b);
    const std::array both = {a, b};
    multiply_many<2>(part, both.data(), panel, unpacked);
  }
  void gate(const TileProduct& gate, const float* up) const { gate_tile(*products.gate, gate, up); }
};

}  // namespace

void run_on_amx(const QuantProducts& p, Claims& claims, Claims::Worker worker) {
  const simd::HWY_NAMESPACE::WholeTiles whole;
  AmxKernel kernel(p);
  each_unit(p, claims, worker, kernel);
}

}  // namespace coppice::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#if HWY_ONCE
namespace coppice::matmul {

void run_amx([[maybe_unused]] const QuantProducts& products, [[maybe_unused]] Claims& claims,
             [[maybe_unused]] Claims::Worker worker) {
#if (HWY_TARGETS & HWY_AVX3_DL) != 0 && (defined(__clang__) || defined(COPPICE_AMX_EMULATED))
  N_AVX3_DL::run_on_amx(products, claims, worker);
#else
  std::abort();  // never called: simd::amx()
#endif
}

}  // namespace coppice::matmul
#endif  // HWY_ONCE
