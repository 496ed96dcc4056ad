// What the kernels do with rows before a product and after it. Included once for each instruction set.
#if defined(COPPICE_MATMUL_QUANT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MATMUL_QUANT_ROWS_INL_H_
#undef COPPICE_MATMUL_QUANT_ROWS_INL_H_
#else
#define COPPICE_MATMUL_QUANT_ROWS_INL_H_
#endif

// After it.
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "matmul/quant_kernel.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::COPPICE_SIMD_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE const float* row_of(const QuantProducts& p, int row) {
  return p.rows.x + std::ptrdiff_t{p.rows.order ? p.rows.order[row] : row} * p.n_in;
}

/// What a row is multiplied by to be normalised, before its weights; 1 for rows that are taken as they are.
HWY_INLINE float row_factor(const QuantProducts& p, int row) {
  if (!p.rows.norm) return 1.0F;
  const hn::CappedTag<float, QuantMatrix::kBlock / 2> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const float* x = row_of(p, row);
  auto even = hn::Zero(d), odd = hn::Zero(d);
  for (int i = 0; i < p.n_in; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, x + i + lanes);
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
  }
  const float squares = hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
  return 1.0F / std::sqrt(squares / static_cast<float>(p.n_in) + p.rows.norm_eps);
}

/// A block of a row: in x, or normalised in `buffer` (kBlock floats, aligned to a vector).
HWY_INLINE const float* block_of_row(const QuantProducts& p, int row, int block, float factor, float* buffer) {
  const std::ptrdiff_t at = std::ptrdiff_t{block} * QuantMatrix::kBlock;
  const float* x = row_of(p, row) + at;
  if (!p.rows.norm) return x;
  const hn::CappedTag<float, QuantMatrix::kBlock> d;
  const auto by = hn::Set(d, factor);
  for (int i = 0; i < QuantMatrix::kBlock; i += static_cast<int>(hn::Lanes(d))) {
    hn::Store(hn::Mul(hn::Mul(hn::LoadU(d, x + i), by), hn::LoadU(d, p.rows.norm + at + i)), d, buffer + i);
  }
  return buffer;
}

template <class D>
HWY_INLINE hn::Vec<D> sigmoid(D d, hn::Vec<D> z) {
  const auto one = hn::Set(d, 1.0F), most = hn::Set(d, 88.0F);  // exp() of more isn't finite; the sigmoid is 0 there
  return hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(z), most))));
}

/// A gate's activation of z, times up.
template <Gate G, class D>
HWY_INLINE hn::Vec<D> gated(D d, hn::Vec<D> z, hn::Vec<D> up) {
  const auto one = hn::Set(d, 1.0F);
  if constexpr (G == Gate::kClamped) {
    const auto limit = hn::Set(d, 7.0F);
    z = hn::Min(z, limit);
    up = hn::Add(hn::Max(hn::Min(up, limit), hn::Neg(limit)), one);
    return hn::Mul(hn::Mul(z, sigmoid(d, hn::Mul(z, hn::Set(d, 1.702F)))), up);
  } else if constexpr (G == Gate::kGelu) {
    const auto inner = hn::Mul(z, hn::MulAdd(hn::Mul(z, z), hn::Set(d, 0.044715F), one));
    return hn::Mul(hn::Mul(z, sigmoid(d, hn::Mul(inner, hn::Set(d, 1.5957691F)))), up);  // 2 * sqrt(2 / pi)
  } else {
    return hn::Mul(hn::Mul(z, sigmoid(d, z)), up);
  }
}

/// y := the gate of y and up, in a tile of both products. What lies behind the last output is another worker's, and not
/// touched: where masked stores are missing (NEON), Highway reads it and writes it back.
template <Gate G>
void gate_tile_by(const TileProduct& gate, const float* up) {
  const hn::CappedTag<float, QuantMatrix::kTileOutputs> d;
  const int lanes = static_cast<int>(hn::Lanes(d)), rest = gate.n_out % lanes, whole = gate.n_out - rest;
  HWY_ALIGN float z[QuantMatrix::kTileOutputs] = {}, other[QuantMatrix::kTileOutputs] = {};
  for (int row = 0; row < gate.n_rows; ++row, up += gate.stride) {
    float* y = gate.y + row * gate.stride;
    for (int i = 0; i < whole; i += lanes) {
      hn::StoreU(gated<G>(d, hn::LoadU(d, y + i), hn::LoadU(d, up + i)), d, y + i);
    }
    if (rest == 0) continue;
    std::copy_n(y + whole, rest, z);
    std::copy_n(up + whole, rest, other);
    hn::Store(gated<G>(d, hn::Load(d, z), hn::Load(d, other)), d, z);
    std::copy_n(z, rest, y + whole);
  }
}

inline void gate_tile(Gate gate, const TileProduct& tile, const float* up) {
  switch (gate) {
    case Gate::kSilu:
      return gate_tile_by<Gate::kSilu>(tile, up);
    case Gate::kGelu:
      return gate_tile_by<Gate::kGelu>(tile, up);
    case Gate::kClamped:
      return gate_tile_by<Gate::kClamped>(tile, up);
  }
}

}  // namespace coppice::matmul::COPPICE_SIMD_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
