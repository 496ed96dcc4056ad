// Products of small f32 matrices that lie in a core's cache. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_SMALL_PRODUCT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SMALL_PRODUCT_INL
#undef COPPICE_SMALL_PRODUCT_INL
#else
#define COPPICE_SMALL_PRODUCT_INL
#endif
// clang-format on

#include <algorithm>
#include <cstddef>

#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::recurrent::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes16 = hn::CappedTag<float, 16>;

/// A matrix in memory: rows `stride` floats apart.
struct In {
  const float* data;
  std::ptrdiff_t stride;
  const float* at(int row, int column) const { return data + row * stride + column; }
};
struct Out {
  float* data;
  std::ptrdiff_t stride;
  float* at(int row, int column) const { return data + row * stride + column; }
};

/// kRows x kVectors of a result in registers.
template <int kRows, int kVectors>
HWY_INLINE void product_tile(int n_k, In a, In b, float keep, In from, Out c) {
  const Lanes16 d;
  const auto lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  hn::Vec<Lanes16> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] =
          from.data ? hn::Mul(hn::Set(d, keep), hn::LoadU(d, from.data + r * from.stride + v * lanes)) : hn::Zero(d);
    }
  }
  for (int k = 0; k < n_k; ++k) {
    hn::Vec<Lanes16> row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = hn::LoadU(d, b.data + k * b.stride + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, a.data[r * a.stride + k]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(x, row[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c.data + r * c.stride + v * lanes);
  }
}

template <int kRows>
HWY_INLINE void product_rows(int n, int n_k, In a, In b, float keep, In from, Out c) {
  const int lanes = static_cast<int>(hn::Lanes(Lanes16()));
  int j = 0;
  const auto tile = [&](auto vectors) HWY_ATTR {
    constexpr int kVectors = decltype(vectors)::value;
    for (; j + kVectors * lanes <= n; j += kVectors * lanes) {
      product_tile<kRows, kVectors>(n_k, a, {b.data + j, b.stride}, keep,
                                    {from.data ? from.data + j : nullptr, from.stride}, {c.data + j, c.stride});
    }
  };
  tile(std::integral_constant<int, 2>());
  tile(std::integral_constant<int, 1>());
}

/// c = keep * from + a b, [m, n] of [m, n_k] and [n_k, n]. from.data may be nullptr, for zeros, and c.data. REQUIRES: n
/// is a multiple of 16.
inline void product(int m, int n, int n_k, In a, In b, float keep, In from, Out c) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3  // 16 registers
  constexpr int kRows = 4;
#else
  constexpr int kRows = 8;
#endif
  int i = 0;
  const auto some = [&](auto rows) HWY_ATTR {
    constexpr int kSome = decltype(rows)::value;
    for (; i + kSome <= m; i += kSome) {
      product_rows<kSome>(n, n_k, {a.at(i, 0), a.stride}, b, keep, {from.data ? from.at(i, 0) : nullptr, from.stride},
                          {c.at(i, 0), c.stride});
    }
  };
  some(std::integral_constant<int, kRows>());
  if constexpr (kRows > 4) some(std::integral_constant<int, 4>());
  some(std::integral_constant<int, 1>());
}

}  // namespace coppice::recurrent::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SMALL_PRODUCT_INL
