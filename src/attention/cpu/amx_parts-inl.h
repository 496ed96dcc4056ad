// What amx-inl.h and amx_few-inl.h are made of: numbers as two bf16, and products of AMX tiles of them. Included once
// for each instruction set.

// clang-format off
#if defined(COPPICE_AMX_PARTS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_AMX_PARTS_INL
#undef COPPICE_AMX_PARTS_INL
#else
#define COPPICE_AMX_PARTS_INL
#endif
// clang-format on

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "attention/cpu/amx_scratch.h"
#include "attention/cpu/kv_load-inl.h"
#include "simd/amx-inl.h"
#include "simd/kernel-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using simd::HWY_NAMESPACE::kTileRow;
using simd::HWY_NAMESPACE::kTileRows;
using simd::HWY_NAMESPACE::load_tile;
using simd::HWY_NAMESPACE::multiply_tiles;
using simd::HWY_NAMESPACE::store_tile;
using simd::HWY_NAMESPACE::zero_tile;

constexpr int kStep = AmxScratch::kStep, kTileSize = AmxScratch::kTileSize;

/// Parts of two vectors of f32, as pairs: a's in the lower halves of the lanes, b's in the upper ones. The high part is
/// rounded, so that what products leave out has either sign.
struct Parts {
  __m512i high, low;

  HWY_INLINE Parts(__m512 a, __m512 b) {
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
    const auto rounded = [&](__m512 x) HWY_ATTR {  // in the upper half
      return _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000));
    };
    const auto rest = [&](__m512 x, __m512i high_of_x) HWY_ATTR {
      return _mm512_castps_si512(_mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_and_si512(high_of_x, upper))));
    };
    const auto pairs = [&](__m512i x, __m512i y) HWY_ATTR {  // upper ? y : x >> 16
      return _mm512_ternarylogic_epi32(upper, y, _mm512_srli_epi32(x, 16), 0xCA);
    };
    const __m512i high_a = rounded(a), high_b = rounded(b);
    high = pairs(high_a, high_b);
    low = pairs(rest(a, high_a), rest(b, high_b));
  }
};

/// Values [i, i + 16) of a head, without its scale.
template <class Load>
HWY_INLINE __m512 load_16(const std::byte* head, int i) {
  const __m512 x = Load::load(hn::ScalableTag<float>(), head, i).raw;
  if constexpr (kScaled<Load>) return x;
  // An infinite value or NaN counts as 0 (with many_whole-inl.h its whole head does): it would spoil all sums.
  return _mm512_fixupimm_ps(x, x, _mm512_set1_epi32(0x00880088), 0);
}

/// A head's scale; 0 where it is infinite or NaN.
HWY_INLINE float finite_scale_of(const std::byte* head) {
  const float scale = scale_of(head);
  return std::isfinite(scale) ? scale : 0.0F;
}

/// Stores pairs of values, or their parts. Codes have a high part only.
template <class Load>
HWY_INLINE void store_loaded(__m512 a, __m512 b, std::uint16_t* tiles, int row) {
  const Parts parts(a, b);
  _mm512_store_si512(tiles + row * kStep, parts.high);
  if constexpr (!kScaled<Load>) _mm512_store_si512(tiles + kTileSize + row * kStep, parts.low);
}

/// An AMX tile of high parts and one of low parts, transposed.
template <bool Low>
HWY_INLINE void store_transposed(__m512i (&high)[kTileRows], __m512i (&low)[kTileRows], std::uint16_t* tiles) {
  simd::HWY_NAMESPACE::transpose(high);
  for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(tiles + i * kStep, high[i]);
  if constexpr (Low) {
    simd::HWY_NAMESPACE::transpose(low);
    for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(tiles + kTileSize + i * kStep, low[i]);
  }
}

/// Sums are AMX tiles 0 to 3: 2 * row + column, of up to 2 x 2.
template <int Rows, int Columns, class Each>
HWY_INLINE void for_each_sum(Each&& each) {
  each.template operator()<0, 0>();
  if constexpr (Columns > 1) each.template operator()<0, 1>();
  if constexpr (Rows > 1) each.template operator()<1, 0>();
  if constexpr (Rows > 1 && Columns > 1) each.template operator()<1, 1>();
}

template <int Rows, int Columns>
HWY_INLINE void clear_tiles() {
  for_each_sum<Rows, Columns>([]<int I, int K>() HWY_ATTR { zero_tile<2 * I + K>(); });
}

template <int Rows, int Columns, class From>
HWY_INLINE void load_tiles(From&& from) {
  for_each_sum<Rows, Columns>([&]<int I, int K>() HWY_ATTR { load_tile<2 * I + K>(from(I, K), kTileRow); });
}

template <int Rows, int Columns, class To>
HWY_INLINE void store_tiles(To&& to) {
  for_each_sum<Rows, Columns>([&]<int I, int K>() HWY_ATTR { store_tile<2 * I + K>(to(I, K), kTileRow); });
}

/// How a matrix's parts lie in memory: the low one's first row, and how far rows are apart. Woven: row by row.
struct PartsLie {
  int low, row;  ///< bf16, bytes
};
constexpr PartsLie kPlain = {kTileSize, kTileRow}, kWoven = {kStep, 2 * kTileRow};

/// Sums += left * right, whose parts are multiplied; `left` may lack its low part. Two tiles of each are loaded for
/// four products; work() runs behind those: only loads wait for them.
template <int Rows, int Columns, bool LeftLow, PartsLie RightLies, class Left, class Right, class Work>
HWY_INLINE void multiply(Left&& left, Right&& right, Work&& work) {
  const auto load_left = [&](int part) HWY_ATTR {
    load_tile<4>(left(0) + part * kTileSize, kTileRow);
    if constexpr (Rows > 1) load_tile<5>(left(1) + part * kTileSize, kTileRow);
  };
  const auto load_right = [&](int part) HWY_ATTR {
    load_tile<6>(right(0) + part * RightLies.low, RightLies.row);
    if constexpr (Columns > 1) load_tile<7>(right(1) + part * RightLies.low, RightLies.row);
  };
  const auto products = [&]() HWY_ATTR {
    for_each_sum<Rows, Columns>([&]<int I, int K>() HWY_ATTR { multiply_tiles<2 * I + K, 4 + I, 6 + K>(); });
    work();
  };
  load_left(0);
  load_right(1);
  products();
  load_right(0);
  products();
  if constexpr (LeftLow) {
    load_left(1);
    products();
  }
}

/// AMX tiles 0 to N - 1 := 0.
template <int N>
HWY_INLINE void clear_columns() {
  zero_tile<0>();
  if constexpr (N > 1) zero_tile<1>();
  if constexpr (N > 2) zero_tile<2>();
}

/// AMX tile T += shared * own (or own * shared, where `Left`), whose parts are multiplied; `shared` is in tiles 3 and 4
/// and may lack its low part. Tiles 5 and 6 are lost.
template <int T, bool Left, bool SharedLow>
HWY_INLINE void multiply_own(const std::uint16_t* own) {
  load_tile<5>(own, kTileRow);
  load_tile<6>(own + kTileSize, kTileRow);
  if constexpr (Left) {
    multiply_tiles<T, 5, 3>();
    if constexpr (SharedLow) multiply_tiles<T, 5, 4>();
    multiply_tiles<T, 6, 3>();
  } else {
    multiply_tiles<T, 3, 5>();
    if constexpr (SharedLow) multiply_tiles<T, 4, 5>();
    multiply_tiles<T, 3, 6>();
  }
}

/// The same for AMX tiles 0 to N - 1: own(i) belongs to tile i.
template <int N, bool Left, bool SharedLow, class Own>
HWY_INLINE void multiply_shared(const std::uint16_t* shared, Own&& own) {
  load_tile<3>(shared, kTileRow);
  if constexpr (SharedLow) load_tile<4>(shared + kTileSize, kTileRow);
  multiply_own<0, Left, SharedLow>(own(0));
  if constexpr (N > 1) multiply_own<1, Left, SharedLow>(own(1));
  if constexpr (N > 2) multiply_own<2, Left, SharedLow>(own(2));
}

/// AMX tile i to `to` + i * stride.
template <int N>
HWY_INLINE void store_columns(float* to, std::ptrdiff_t stride) {
  store_tile<0>(to, kTileRow);
  if constexpr (N > 1) store_tile<1>(to + stride, kTileRow);
  if constexpr (N > 2) store_tile<2>(to + 2 * stride, kTileRow);
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#endif  // COPPICE_AMX_PARTS_INL
