// One tile of 16 outputs times a panel of up to 16 rows. A block of the tile is loaded and unpacked once for all rows of
// the panel; four inputs of a row are broadcast to all outputs and multiplied with one instruction.
#if defined(COPPICE_MATMUL_QUANT_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MATMUL_QUANT_KERNEL_INL_H_
#undef COPPICE_MATMUL_QUANT_KERNEL_INL_H_
#else
#define COPPICE_MATMUL_QUANT_KERNEL_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "matmul/quant_kernel.h"
#include "matmul/quant_rows-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kBlock = QuantMatrix::kBlock;
constexpr int kOut = QuantMatrix::kTileOutputs;
constexpr int kGroups = kBlock / 4;  // groups of four inputs in a block
constexpr int kPanelRows = kVectorPanelRows;
constexpr int kPanelBlocks = QuantMatrix::kBlocksAtOnce;  // inputs rounded at a time: 2,048

constexpr int zero_of(QuantType type) {
  return type == QuantType::kQ4_0 ? 8 : type == QuantType::kQ8_0 ? 128 : 0;
}

using F = hn::CappedTag<float, kOut>;
using I = hn::RebindToSigned<F>;
using U8 = hn::Repartition<std::uint8_t, F>;
using U16 = hn::Repartition<std::uint16_t, F>;

enum class ByteDots : std::uint8_t {
  kNone,
  kSmall,  ///< sums of two products must fit 16 bits: 4-bit weights only
  kExact,
};

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
constexpr ByteDots kByteDots = HWY_TARGET == HWY_AVX3_DL ? ByteDots::kExact : ByteDots::kSmall;
#else
constexpr ByteDots kByteDots = ByteDots::kNone;
#endif

/// sum + the products of four unsigned and four signed bytes, in each lane. Highway has no such operation yet.
HWY_INLINE hn::Vec<I> add_dots(hn::Vec<I> sum, hn::Vec<U8> w, hn::Vec<I> x) {
#if HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<I>{_mm512_dpbusd_epi32(sum.raw, w.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX3
  const __m512i pairs = _mm512_maddubs_epi16(w.raw, x.raw);
  return hn::Add(sum, hn::Vec<I>{_mm512_madd_epi16(pairs, _mm512_set1_epi16(1))});
#elif HWY_TARGET == HWY_AVX2
  const __m256i pairs = _mm256_maddubs_epi16(w.raw, x.raw);
  return hn::Add(sum, hn::Vec<I>{_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))});
#else
  (void)w, (void)x;
  return sum;  // never called: kByteDots
#endif
}

/// Up to 16 rows of x, rounded block by block.
struct Panel {
  alignas(64) std::int8_t q[kPanelBlocks][kPanelRows][kBlock];
  alignas(64) float scale[kPanelBlocks][kPanelRows];
  alignas(64) float sum[kPanelBlocks][kPanelRows];          ///< scale * sum of q
  alignas(64) std::int32_t zero[kPanelBlocks][kPanelRows];  ///< -zero * sum of q
};

/// The nearest number that f16 holds: what ggml keeps of a scale. Other roundings would be as good, but then every
/// rounding of the layers behind falls out differently, and results are as far from ggml's as noise goes (ADR 0011).
HWY_INLINE float half_of(float scale) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  return hn::GetLane(hn::PromoteTo(d, hn::DemoteTo(half, hn::Set(d, scale))));
}

/// x: a block of a row.
HWY_INLINE void round_block(const float* x, int zero, int block, int row, Panel& panel) {
  const hn::CappedTag<float, kBlock> d;
  const hn::Rebind<std::int8_t, decltype(d)> bytes;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int lanes = static_cast<int>(hn::MaxLanes(hn::CappedTag<float, kBlock>()));
  auto largest = hn::Zero(d);
  for (int i = 0; i < kBlock; i += lanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto inverse = hn::Set(d, most > 0.0F ? 127.0F / most : 0.0F);
  auto total = hn::Zero(di);
  for (int i = 0; i < kBlock; i += lanes) {
    const auto q = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
    total = hn::Add(total, q);
    hn::StoreU(hn::DemoteTo(bytes, q), bytes, panel.q[block][row] + i);
  }
  const float scale = half_of(most / 127.0F);
  const std::int32_t sum = hn::GetLane(hn::SumOfLanes(di, total));
  panel.scale[block][row] = scale;
  panel.sum[block][row] = scale * static_cast<float>(sum);
  panel.zero[block][row] = -zero * sum;
}

inline void round_rows(const QuantProducts& p, int zero, const UnitPart& part, Panel& panel) {
  for (int r = 0; r < part.n_rows; ++r) {
    const float factor = row_factor(p, part.first_row + r);
    for (int b = 0; b < part.n_blocks; ++b) {
      HWY_ALIGN float buffer[kBlock];
      round_block(block_of_row(p, part.first_row + r, part.first_block + b, factor, buffer), zero, b, r, panel);
    }
  }
}

/// The weights of four inputs of each lane's output, for each group of a block. q: the lanes' first.
template <QuantType Type>
HWY_INLINE void unpack(const std::byte* q, hn::Vec<U8> (&w)[kGroups]) {
  const U8 d;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(q);
  if constexpr (Type == QuantType::kQ8_0) {
    for (int g = 0; g < kGroups; ++g) w[g] = hn::LoadU(d, bytes + g * kOut * 4);
  } else {
    const auto low = hn::Set(d, std::uint8_t{15});
    for (int g = 0; g < kGroups; g += 2) {
      const auto pairs = hn::LoadU(d, bytes + g / 2 * kOut * 4);
      w[g] = hn::And(pairs, low);
      w[g + 1] = hn::And(hn::BitCast(d, hn::ShiftRight<4>(hn::BitCast(U16(), pairs))), low);
    }
  }
}

HWY_INLINE hn::Vec<F> load_halves(const std::byte* halves) {
  const hn::Rebind<hwy::float16_t, F> half;
  return hn::PromoteTo(F(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(halves)));
}

/// Asks for a block that comes soon, of this tile or the next one. The hardware's prefetchers come late (ADR 0011).
template <std::size_t BlockSize>
HWY_INLINE void prefetch_block(const std::byte* now) {
  constexpr std::size_t ahead = 8;
  for (std::size_t i = 0; i < BlockSize; i += 64) __builtin_prefetch(now + ahead * BlockSize + i);
}

/// y[Rows][kOut] = `plus` + a tile's blocks times the panel's rows from `first_row`. `stride`: floats between rows of y, and
/// of plus, which may be y or nullptr.
template <QuantType Type, int Rows>
void multiply_tile(const std::byte* tile, int n_blocks, const Panel& panel, int first_row, const float* plus, float* y,
                   std::ptrdiff_t stride) {
  constexpr TileBlock layout = TileBlock::of(Type);
  constexpr int lanes = static_cast<int>(hn::MaxLanes(F()));
  const F d;
  const I di;
  for (int first = 0; first < kOut; first += lanes) {
    hn::Vec<F> acc[Rows];
    for (int r = 0; r < Rows; ++r) acc[r] = plus ? hn::LoadU(d, plus + r * stride + first) : hn::Zero(d);
    const std::byte* at = tile;
    for (int b = 0; b < n_blocks; ++b, at += layout.size) {
      if (first == 0) prefetch_block<layout.size>(at);
      hn::Vec<U8> w[kGroups];
      unpack<Type>(at + layout.q + first * 4, w);
      const auto scale = load_halves(at + first * 2);
      hn::Vec<F> offset = hn::Zero(d);
      if constexpr (Type == QuantType::kQ4_1) offset = load_halves(at + layout.m + first * 2);
      HWY_UNROLL(16)
      for (int r = 0; r < Rows; ++r) {
        auto dots = Type == QuantType::kQ4_1 ? hn::Zero(di) : hn::Set(di, panel.zero[b][first_row + r]);
        for (int g = 0; g < kGroups; ++g) {
          std::int32_t four;
          std::memcpy(&four, &panel.q[b][first_row + r][4 * g], 4);
          dots = add_dots(dots, w[g], hn::Set(di, four));
        }
        acc[r] = hn::MulAdd(hn::ConvertTo(d, dots), hn::Mul(scale, hn::Set(d, panel.scale[b][first_row + r])), acc[r]);
        if constexpr (Type == QuantType::kQ4_1)
          acc[r] = hn::MulAdd(offset, hn::Set(d, panel.sum[b][first_row + r]), acc[r]);
      }
    }
    for (int r = 0; r < Rows; ++r) hn::StoreU(acc[r], d, y + r * stride + first);
  }
}

/// Rows that share a pass: their accumulators must fit the registers beside a block's weights.
constexpr int kPassRows = HWY_TARGET == HWY_AVX2 ? 4 : kPanelRows;

using TileFunction = void (*)(const std::byte*, int, const Panel&, int, const float*, float*, std::ptrdiff_t);

/// multiply_tile() for 1, 2, ... rows.
template <QuantType Type, int... Less>
constexpr std::array<TileFunction, sizeof...(Less)> tile_functions(std::integer_sequence<int, Less...>) {
  return {multiply_tile<Type, Less + 1>...};
}

template <QuantType Type>
void multiply_panel(const TileProduct& t, const Panel& panel) {
  static constexpr auto functions = tile_functions<Type>(std::make_integer_sequence<int, kPassRows>());
  for (int row = 0; row < t.n_rows; row += kPassRows) {
    const int rows = std::min(kPassRows, t.n_rows - row);
    const float* plus = t.plus ? t.plus + row * t.stride : nullptr;
    float* y = t.y + row * t.stride;
    const TileFunction function = functions[static_cast<std::size_t>(rows - 1)];
    if (t.n_out == kOut) {
      function(t.tile, t.n_blocks, panel, row, plus, y, t.stride);
      continue;
    }
    HWY_ALIGN float out[kPassRows * kOut];  // the last tile of a matrix reaches beyond it
    function(t.tile, t.n_blocks, panel, row, nullptr, out, kOut);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < t.n_out; ++o) {
        y[r * t.stride + o] = out[r * kOut + o] + (plus ? plus[r * t.stride + o] : 0.0F);
      }
    }
  }
}

template <QuantType Type>
struct PanelKernel {
  const QuantProducts& products;
  Panel panel;

  explicit PanelKernel(const QuantProducts& p) : products(p) {}  // the panel is too large to be zeroed for nothing
  void round(const UnitPart& part) { round_rows(products, zero_of(Type), part, panel); }
  void multiply(const TileProduct& t) const { multiply_panel<Type>(t, panel); }
  void gate(const TileProduct& gate, const float* up) const { gate_tile(gate, up); }
};

template <QuantType Type>
void multiply(const QuantProducts& p, Claims& claims, int n_workers) {
  PanelKernel<Type> kernel(p);
  each_unit(p, claims, n_workers, kernel);
}

}  // namespace coppice::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
