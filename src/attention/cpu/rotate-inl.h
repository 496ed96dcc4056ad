// The rotation of attention/kv_format.h. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_ROTATE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_ROTATE_INL
#undef COPPICE_ROTATE_INL
#else
#define COPPICE_ROTATE_INL
#endif
// clang-format on

#include <array>
#include <cmath>

#include "attention/kv_format.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// x := H x, not normalised. REQUIRES: n is a power of two and at least a vector.
HWY_INLINE void hadamard(float* x, int n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int h = 1; h < lanes; h *= 2) {  // partners lie in one vector: lanes l and l ^ h
    const auto bit = hn::Set(di, h);
    const auto partner = hn::IndicesFromVec(d, hn::Xor(hn::Iota(di, 0), bit));
    const auto upper = hn::RebindMask(d, hn::Eq(hn::And(hn::Iota(di, 0), bit), bit));
    for (int i = 0; i < n; i += lanes) {
      const auto v = hn::LoadU(d, x + i);
      hn::StoreU(hn::Add(hn::TableLookupLanes(v, partner), hn::IfThenElse(upper, hn::Neg(v), v)), d, x + i);
    }
  }
  for (int h = lanes; h < n; h *= 2) {
    for (int i = 0; i < n; i += 2 * h) {
      for (int j = i; j < i + h; j += lanes) {
        const auto a = hn::LoadU(d, x + j), b = hn::LoadU(d, x + j + h);
        hn::StoreU(hn::Add(a, b), d, x + j);
        hn::StoreU(hn::Sub(a, b), d, x + j + h);
      }
    }
  }
}

/// rotation_sign as a table.
inline constexpr auto kSigns = [] {
  std::array<float, kMaxRotated> signs{};
  for (int i = 0; i < kMaxRotated; ++i) signs[static_cast<std::size_t>(i)] = rotation_sign(i);
  return signs;
}();

/// to := scale * R from. REQUIRES: n <= kMaxRotated, a multiple of 16.
HWY_INLINE void rotate(const float* from, float scale, int n, float* to) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int at = 0, piece = 0; at < n; at += piece) {
    piece = rotated_piece(n - at);
    const auto factor = hn::Set(d, scale / std::sqrt(static_cast<float>(piece)));
    for (int i = at; i < at + piece; i += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, from + i), hn::LoadU(d, kSigns.data() + i)), factor), d, to + i);
    }
    hadamard(to + at, piece);
  }
}

/// x := R^-1 x, in place. REQUIRES: as rotate.
HWY_INLINE void rotate_back(float* x, int n) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int at = 0, piece = 0; at < n; at += piece) {
    piece = rotated_piece(n - at);
    hadamard(x + at, piece);
    const auto factor = hn::Set(d, 1.0F / std::sqrt(static_cast<float>(piece)));
    for (int i = at; i < at + piece; i += lanes) {
      hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), hn::LoadU(d, kSigns.data() + i)), factor), d, x + i);
    }
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_ROTATE_INL
