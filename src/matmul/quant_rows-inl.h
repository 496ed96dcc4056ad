// What the kernels do with rows before a product and after it. Included once for each instruction set.
#if defined(COPPICE_MATMUL_QUANT_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MATMUL_QUANT_ROWS_INL_H_
#undef COPPICE_MATMUL_QUANT_ROWS_INL_H_
#else
#define COPPICE_MATMUL_QUANT_ROWS_INL_H_
#endif

// After it.
#include <hwy/contrib/math/math-inl.h>

#include <cmath>
#include <cstddef>

#include "matmul/quant_kernel.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::matmul::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// What a row is multiplied by to be normalised, before its weights; 1 for rows that are taken as they are.
HWY_INLINE float row_factor(const QuantProducts& p, int row) {
  if (!p.rows.norm) return 1.0F;
  const hn::CappedTag<float, QuantMatrix::kBlock / 2> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const float* x = p.rows.x + std::ptrdiff_t{row} * p.n_in;
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
  const float* x = p.rows.x + std::ptrdiff_t{row} * p.n_in + at;
  if (!p.rows.norm) return x;
  const hn::CappedTag<float, QuantMatrix::kBlock> d;
  const auto by = hn::Set(d, factor);
  for (int i = 0; i < QuantMatrix::kBlock; i += static_cast<int>(hn::Lanes(d))) {
    hn::Store(hn::Mul(hn::Mul(hn::LoadU(d, x + i), by), hn::LoadU(d, p.rows.norm + at + i)), d, buffer + i);
  }
  return buffer;
}

/// y := silu(y) * up, in a tile of both products.
inline void gate_tile(const TileProduct& gate, const float* up) {
  const hn::CappedTag<float, QuantMatrix::kTileOutputs> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0F), most = hn::Set(d, 88.0F);  // exp() of more isn't finite; silu is 0 there
  for (int row = 0; row < gate.n_rows; ++row) {
    float* y = gate.y + row * gate.stride;
    for (int i = 0; i < gate.n_out; i += lanes) {
      const auto there = hn::FirstN(d, static_cast<std::size_t>(gate.n_out - i));
      const auto z = hn::MaskedLoad(there, d, y + i);
      const auto silu = hn::Div(z, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(z), most))));
      hn::BlendedStore(hn::Mul(silu, hn::MaskedLoad(there, d, up + row * gate.stride + i)), there, d, y + i);
    }
  }
}

}  // namespace coppice::matmul::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
