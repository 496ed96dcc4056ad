// One tile of 16 outputs times a panel of up to 16 rows. A block of the tile is loaded and unpacked once for all rows
// of the panel; four inputs of a row are broadcast to all outputs and multiplied with one instruction.
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
namespace coppice::matmul::COPPICE_SIMD_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr int kPanelRows = kVectorPanelRows;
constexpr std::array kZeros = {8, 16, 128};  // that types subtract from a block's q
constexpr int kHalfZero = 32;                // of the type with scales for halves of blocks

enum class ByteDots : std::uint8_t {
  kNone,
  kSmall,   ///< sums of two products must fit 16 bits: weights of 8 bits must be signed
  kSigned,  ///< of signed bytes: weights of 8 bits must be
  kExact,
};

#if HWY_TARGET == HWY_AVX3_DL || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
constexpr ByteDots kByteDots = HWY_TARGET == HWY_AVX3_DL ? ByteDots::kExact : ByteDots::kSmall;
#elif defined(COPPICE_SIMD_NEON_BYTES)
constexpr ByteDots kByteDots = ByteDots::kSigned;
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
#elif defined(COPPICE_SIMD_NEON_BYTES)
  return hn::Vec<I>{vdotq_s32(sum.raw, vreinterpretq_s8_u8(w.raw), vreinterpretq_s8_s32(x.raw))};
#else
  (void)w, (void)x;
  return sum;  // never called: kByteDots
#endif
}

/// sum + the products of four bytes, in each lane. Weights of 8 bits are signed where their sums would overflow else;
/// an instruction that multiplies signed bytes takes |w| and x with w's sign.
template <bool Signed>
HWY_INLINE hn::Vec<I> add_signed_dots(hn::Vec<I> sum, hn::Vec<U8> w, hn::Vec<I> x) {
  if constexpr (!Signed || kByteDots == ByteDots::kSigned) return add_dots(sum, w, x);
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
/// rounding of the layers behind falls out differently, and results are as far from ggml's as noise goes
/// (docs/decisions.md, "Packed products on CPUs").
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

/// A block's scales for as many outputs as a vector has lanes: of its halves, where the type has two, and what its sum
/// is multiplied by.
struct BlockScales {
  hn::Vec<F> first, second, min;
};

/// acc += a block times a row. first, second: the sums of products of its halves, or of all of it.
template <QuantType Type>
HWY_INLINE void add_block(const BlockScales& scales, const RowBlock& row, hn::Vec<I> first, hn::Vec<I> second,
                          hn::Vec<F>& acc) {
  constexpr PackedForm form = PackedForm::of(Type);
  const F d;
  const auto x_scale = hn::Set(d, row.scale);
  if constexpr (form.scales == 2) {
    const auto half = hn::Mul(hn::ConvertTo(d, first), scales.first);
    acc = hn::MulAdd(hn::MulAdd(hn::ConvertTo(d, second), scales.second, half), x_scale, acc);
  } else {
    acc = hn::MulAdd(hn::ConvertTo(d, first), hn::Mul(scales.first, x_scale), acc);
  }
  if constexpr (form.has_min()) acc = hn::MulAdd(scales.min, hn::Set(d, row.sum), acc);
}

/// Where the sum of a block's products begins, or that of half a block.
template <QuantType Type, bool Signed>
HWY_INLINE hn::Vec<I> start_of_sum(const RowBlock& row, [[maybe_unused]] int half) {
  constexpr PackedForm form = PackedForm::of(Type);
  const I di;
  if constexpr (!Signed && form.scales == 2) return hn::Set(di, row.half_start[half]);
  if constexpr (!Signed && form.scales != 2 && form.zero > 0) return hn::Set(di, row.start[start_of(form.zero)]);
  return hn::Zero(di);
}

/// accs += a block times Rows rows.
template <QuantType Type, int Rows, bool Signed>
HWY_INLINE void add_rows(const hn::Vec<U8> (&w)[kGroups], const BlockScales& scales, const RowBlock* rows,
                         hn::Vec<F>* acc) {
  constexpr int halves = PackedForm::of(Type).scales == 2 ? 2 : 1;  // parts of a block with a scale each
  const I di;
  HWY_UNROLL(16)
  for (int r = 0; r < Rows; ++r) {
    const auto dots = [&](int half) HWY_ATTR {
      auto sum = start_of_sum<Type, Signed>(rows[r], half);
      for (int g = half * kGroups / 2; g < (half + 1) * kGroups / halves; ++g) {
        std::int32_t four;
        std::memcpy(&four, &rows[r].q[4 * g], 4);
        sum = add_signed_dots<Signed>(sum, w[g], hn::Set(di, four));
      }
      return sum;
    };
    const auto first = dots(0);
    add_block<Type>(scales, rows[r], first, halves == 2 ? dots(1) : first, acc[r]);
  }
}

#if defined(COPPICE_SIMD_NEON_BYTES) && COPPICE_SIMD_NEON_BYTES == 2
/// The same for pairs of rows, by products of 2 outputs x 8 inputs and 8 inputs x 2 rows.
template <QuantType Type, int Rows, bool Signed>
HWY_INLINE void add_row_pairs(const hn::Vec<U8> (&w)[kGroups], const BlockScales& scales, const RowBlock* rows,
                              hn::Vec<F>* acc) {
  static_assert(Rows % 2 == 0);
  constexpr int halves = PackedForm::of(Type).scales == 2 ? 2 : 1;
  int8x16_t low[kGroups / 2], high[kGroups / 2];  // eight inputs of the first two outputs, and of the others
  for (int g = 0; g < kGroups; g += 2) {
    const auto even = vreinterpretq_s32_u8(w[g].raw), odd = vreinterpretq_s32_u8(w[g + 1].raw);
    low[g / 2] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
    high[g / 2] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
  }
  for (int r = 0; r < Rows; r += 2) {
    hn::Vec<I> sums[2][2];  // [row][half]
    for (int half = 0; half < halves; ++half) {
      int32x4_t lows = vdupq_n_s32(0), highs = vdupq_n_s32(0);
      for (int i = half * kGroups / 4; i < (half + 1) * kGroups / 2 / halves; ++i) {
        const int8x16_t x = vcombine_s8(vld1_s8(rows[r].q + 8 * i), vld1_s8(rows[r + 1].q + 8 * i));
        lows = vmmlaq_s32(lows, low[i], x);
        highs = vmmlaq_s32(highs, high[i], x);
      }
      sums[0][half] = hn::Add(start_of_sum<Type, Signed>(rows[r], half), hn::Vec<I>{vuzp1q_s32(lows, highs)});
      sums[1][half] = hn::Add(start_of_sum<Type, Signed>(rows[r + 1], half), hn::Vec<I>{vuzp2q_s32(lows, highs)});
    }
    for (int i = 0; i < 2; ++i) add_block<Type>(scales, rows[r + i], sums[i][0], sums[i][halves - 1], acc[r + i]);
  }
}
#endif

/// y[Rows][kOut] = `plus` + a tile's blocks times rows of a panel. x: the first row's first block, of panel_rows each.
/// Strides: floats between rows. plus may be y or nullptr.
template <QuantType Type, int Rows>
void multiply_tile(const std::byte* tile, int n_blocks, const RowBlock* x, int panel_rows, const float* plus,
                   std::ptrdiff_t plus_stride, float* y, std::ptrdiff_t stride) {
  constexpr PackedForm form = PackedForm::of(Type);
  constexpr int lanes = static_cast<int>(hn::MaxLanes(F()));
  constexpr bool is_signed = kByteDots != ByteDots::kExact && form.zero == 128;
  const F d;
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
        const BlockScales block{scales.scale(in_chunk, 0), scales.scale(in_chunk, form.scales == 2 ? 1 : 0),
                                scales.min(in_chunk)};
        const RowBlock* rows = x + std::ptrdiff_t{b} * panel_rows;
#if defined(COPPICE_SIMD_NEON_BYTES) && COPPICE_SIMD_NEON_BYTES == 2
        constexpr int paired = Rows / 2 * 2;
        if constexpr (paired > 0) add_row_pairs<Type, paired, is_signed>(w, block, rows, acc);
        if constexpr (paired < Rows) add_rows<Type, 1, is_signed>(w, block, rows + paired, acc + paired);
#else
        add_rows<Type, Rows, is_signed>(w, block, rows, acc);
#endif
      }
    }
    for (int r = 0; r < Rows; ++r) hn::StoreU(acc[r], d, y + r * stride + first);
  }
}

/// Rows that share a pass: their accumulators must fit the registers beside a block's weights.
constexpr int kPassRows = HWY_TARGET == HWY_AVX2 ? 4 : HWY_TARGET == HWY_NEON ? 8 : kPanelRows;

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

inline void run([[maybe_unused]] const QuantProducts& p, [[maybe_unused]] Claims& claims,
                [[maybe_unused]] Claims::Worker worker) {
  if constexpr (kByteDots != ByteDots::kNone) {
    PanelKernel kernel(p);
    each_unit(p, claims, worker, kernel);
  }
}

}  // namespace coppice::matmul::COPPICE_SIMD_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
