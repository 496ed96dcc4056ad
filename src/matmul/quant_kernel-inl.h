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
#include "matmul/quant_unpack-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kPanelRows = kVectorPanelRows;
constexpr std::array kZeros = {8, 16, 128};  // that types subtract from a block's q
constexpr int kHalfZero = 32;                // of the type with scales for halves of blocks

enum class ByteDots : std::uint8_t {
  kNone,
  kSmall,  ///< sums of two products must fit 16 bits: weights of 8 bits must be signed
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

/// sum + the products of four bytes, in each lane. Weights of 8 bits are signed where their sums would overflow else; an
/// instruction that multiplies signed bytes takes |w| and x with w's sign.
template <bool Signed>
HWY_INLINE hn::Vec<I> add_signed_dots(hn::Vec<I> sum, hn::Vec<U8> w, hn::Vec<I> x) {
  if constexpr (!Signed) return add_dots(sum, w, x);
  const hn::RebindToSigned<U8> d;
  const auto weights = hn::BitCast(d, w), bytes = hn::BitCast(d, x);
  const auto turned = hn::BitCast(I(), hn::IfNegativeThenElse(weights, hn::Neg(bytes), bytes));
  return add_dots(sum, hn::BitCast(U8(), hn::Abs(weights)), turned);
}

/// A block of a row of x, rounded: a cache line, so that a lone row's blocks lie side by side.
struct alignas(64) RowBlock {
  std::int8_t q[kBlock];
  float scale;
  float sum;                          ///< scale * sum of q
  std::int32_t start[kZeros.size()];  ///< - kZeros[i] * sum of q
  std::int32_t half_start[2];         ///< - kHalfZero * sum of q of half a block
};
static_assert(sizeof(RowBlock) == 64);

/// Up to 16 rows of x: of each block, all rows.
struct Panel {
  RowBlock blocks[kVectorPanelBlocks * kPanelRows];
};

/// The nearest number that f16 holds: what ggml keeps of a scale. Other roundings would be as good, but then every
/// rounding of the layers behind falls out differently, and results are as far from ggml's as noise goes (ADR 0011).
HWY_INLINE float half_of(float scale) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  return hn::GetLane(hn::PromoteTo(d, hn::DemoteTo(half, hn::Set(d, scale))));
}

/// x: a block of a row. Halves: whether a type with scales for halves of blocks is multiplied.
template <bool Halves>
HWY_INLINE void round_block(const float* x, RowBlock& to) {
  const hn::CappedTag<float, kBlock / 2> d;
  const hn::Rebind<std::int8_t, decltype(d)> bytes;
  const hn::RebindToSigned<decltype(d)> di;
  constexpr int lanes = static_cast<int>(hn::MaxLanes(hn::CappedTag<float, kBlock / 2>()));
  auto largest = hn::Zero(d);
  for (int i = 0; i < kBlock; i += lanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  }
  const float most = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto inverse = hn::Set(d, most > 0.0F ? 127.0F / most : 0.0F);
  hn::Vec<decltype(di)> totals[2];  // of the block's halves
  for (int half = 0; half < 2; ++half) {
    totals[half] = hn::Zero(di);
    for (int i = half * kBlock / 2; i < (half + 1) * kBlock / 2; i += lanes) {
      const auto q = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
      totals[half] = hn::Add(totals[half], q);
      hn::StoreU(hn::DemoteTo(bytes, q), bytes, to.q + i);
    }
  }
  if constexpr (Halves) {
    for (int half = 0; half < 2; ++half) {
      to.half_start[half] = -kHalfZero * hn::GetLane(hn::SumOfLanes(di, totals[half]));
    }
  }
  const std::int32_t sum = hn::GetLane(hn::SumOfLanes(di, hn::Add(totals[0], totals[1])));
  const float scale = half_of(most / 127.0F);
  to.scale = scale;
  to.sum = scale * static_cast<float>(sum);
  for (std::size_t i = 0; i < kZeros.size(); ++i) to.start[i] = -kZeros[i] * sum;
}

template <bool Halves>
void round_rows(const QuantProducts& p, const UnitPart& part, Panel& panel) {
  for (int r = 0; r < part.n_rows; ++r) {
    const float factor = row_factor(p, part.first_row + r);
    for (int b = 0; b < part.n_blocks; ++b) {
      HWY_ALIGN float buffer[kBlock];
      round_block<Halves>(block_of_row(p, part.first_row + r, part.first_block + b, factor, buffer),
                          panel.blocks[b * part.n_rows + r]);
    }
  }
}

constexpr std::size_t start_of(int zero) {
  return static_cast<std::size_t>(std::ranges::find(kZeros, zero) - kZeros.begin());
}

/// y[Rows][kOut] = `plus` + a tile's blocks times rows of a panel. x: the first row's first block, of panel_rows each. Strides:
/// floats between rows. plus may be y or nullptr.
template <QuantType Type, int Rows>
void multiply_tile(const std::byte* tile, int n_blocks, const RowBlock* x, int panel_rows, const float* plus,
                   std::ptrdiff_t plus_stride, float* y, std::ptrdiff_t stride) {
  constexpr PackedForm form = PackedForm::of(Type);
  constexpr int lanes = static_cast<int>(hn::MaxLanes(F()));
  constexpr bool is_signed = kByteDots == ByteDots::kSmall && form.zero == 128;
  constexpr int halves = form.scales == 2 ? 2 : 1;  // parts of a block with a scale each
  const F d;
  const I di;
  for (int first = 0; first < kOut; first += lanes) {
    hn::Vec<F> acc[Rows];
    for (int r = 0; r < Rows; ++r) acc[r] = plus ? hn::LoadU(d, plus + r * plus_stride + first) : hn::Zero(d);
    const std::byte* chunk = tile;
    for (int b = 0; b < n_blocks; chunk += form.chunk_bytes()) {
      const ChunkScales<Type> scales(chunk, first);
      for (int in_chunk = 0; in_chunk < form.chunk_blocks; ++in_chunk, ++b) {
        if (first == 0) prefetch_block<Type>(chunk, in_chunk);
        hn::Vec<U8> w[kGroups];
        unpack<Type>(chunk + form.blocks_at() + in_chunk * form.block_bytes() + first * 4, w);
        if constexpr (is_signed) {
          for (auto& weights : w) weights = hn::Xor(weights, hn::Set(U8(), std::uint8_t{128}));
        }
        const auto scale = scales.scale(in_chunk, 0), second_scale = scales.scale(in_chunk, halves - 1);
        const auto min = scales.min(in_chunk);
        const RowBlock* rows = x + std::ptrdiff_t{b} * panel_rows;
        /// Of row r's block, or half a block.
        const auto dots = [&](int r, [[maybe_unused]] int half, int first_group, int end_group) HWY_ATTR {
          auto sum = hn::Zero(di);
          if constexpr (!is_signed && halves == 2) sum = hn::Set(di, rows[r].half_start[half]);
          if constexpr (!is_signed && halves == 1 && form.zero > 0)
            sum = hn::Set(di, rows[r].start[start_of(form.zero)]);
          for (int g = first_group; g < end_group; ++g) {
            std::int32_t four;
            std::memcpy(&four, &rows[r].q[4 * g], 4);
            sum = add_signed_dots<is_signed>(sum, w[g], hn::Set(di, four));
          }
          return hn::ConvertTo(d, sum);
        };
        HWY_UNROLL(16)
        for (int r = 0; r < Rows; ++r) {
          const auto x_scale = hn::Set(d, rows[r].scale);
          if constexpr (halves == 2) {
            const auto half = hn::Mul(dots(r, 0, 0, kGroups / 2), scale);
            const auto both = hn::MulAdd(dots(r, 1, kGroups / 2, kGroups), second_scale, half);
            acc[r] = hn::MulAdd(both, x_scale, acc[r]);
          } else {
            acc[r] = hn::MulAdd(dots(r, 0, 0, kGroups), hn::Mul(scale, x_scale), acc[r]);
          }
          if constexpr (form.has_min()) acc[r] = hn::MulAdd(min, hn::Set(d, rows[r].sum), acc[r]);
        }
      }
    }
    for (int r = 0; r < Rows; ++r) hn::StoreU(acc[r], d, y + r * stride + first);
  }
}

/// Rows that share a pass: their accumulators must fit the registers beside a block's weights.
constexpr int kPassRows = HWY_TARGET == HWY_AVX2 ? 4 : kPanelRows;

using TileFunction = void (*)(const std::byte*, int, const RowBlock*, int, const float*, std::ptrdiff_t, float*,
                              std::ptrdiff_t);

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
    const float* plus = t.plus ? t.plus + row * t.plus_stride : nullptr;
    float* y = t.y + row * t.stride;
    const TileFunction function = functions[static_cast<std::size_t>(rows - 1)];
    if (t.n_out == kOut) {
      function(t.tile, t.n_blocks, panel.blocks + row, t.n_rows, plus, t.plus_stride, y, t.stride);
      continue;
    }
    HWY_ALIGN float out[kPassRows * kOut];  // the last tile of a matrix reaches beyond it
    function(t.tile, t.n_blocks, panel.blocks + row, t.n_rows, nullptr, 0, out, kOut);
    for (int r = 0; r < rows; ++r) {
      for (int o = 0; o < t.n_out; ++o) {
        y[r * t.stride + o] = out[r * kOut + o] + (plus ? plus[r * t.plus_stride + o] : 0.0F);
      }
    }
  }
}

struct PanelKernel {
  const QuantProducts& products;
  bool halves;  ///< of blocks have scales in some matrix
  Panel panel;

  explicit PanelKernel(const QuantProducts& p)  // the panel is too large to be zeroed for nothing
      : products(p), halves(std::ranges::any_of(p.products, [](const QuantMatrix::Product& product) {
          return PackedForm::of(product.matrix->type()).scales == 2;
        })) {}
  void round(const UnitPart& part) {
    if (halves) {
      round_rows<true>(products, part, panel);
    } else {
      round_rows<false>(products, part, panel);
    }
  }
  void multiply(const TileProduct& t) const {
    with_type(t.type, [&]<QuantType Type>() { multiply_panel<Type>(t, panel); });
  }
  void gate(const TileProduct& gate, const float* up) const { gate_tile(*products.gate, gate, up); }
};

}  // namespace coppice::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
