#include "recurrent/convolution.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "recurrent/convolution.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "recurrent/silu-inl.h"
#include "simd/kernel-inl.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::recurrent::HWY_NAMESPACE {

using Lanes16 = hn::CappedTag<float, 16>;
using Vec16 = hn::Vec<Lanes16>;

/// The weights of one vector of channels, by tap.
template <int kTaps>
HWY_INLINE void load_weights(Lanes16 d, const float* weights, Vec16& a, Vec16& b, Vec16& c, Vec16& e) {
  if constexpr (kTaps == 2) hn::LoadInterleaved2(d, weights, a, b);
  if constexpr (kTaps == 3) hn::LoadInterleaved3(d, weights, a, b, c);
  if constexpr (kTaps == 4) hn::LoadInterleaved4(d, weights, a, b, c, e);
}

/// A vector of channels walks along all rows; the inputs that the next row needs stay in registers. Vectors of 4 taps,
/// of which kTaps are used: the last weight is the row's own.
template <int kTaps, bool kGated>
void walk(const ConvRows& r, int begin, int end) {
  const Lanes16 d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const std::ptrdiff_t n = r.n_channels, stride = kGated ? 3 * n : n;
  for (int c = begin; c < end; c += lanes) {
    const Vec16 zero = hn::Zero(d);
    Vec16 w0 = zero, w1 = zero, w2 = zero, w3 = zero;
    load_weights<kTaps>(d, r.weights + std::ptrdiff_t{c} * kTaps, w0, w1, w2, w3);
    const Vec16 bias = r.bias ? hn::LoadU(d, r.bias + c) : zero;
    const auto earlier = [&](int i) HWY_ATTR { return r.before ? hn::LoadU(d, r.before + i * n + c) : zero; };
    Vec16 x0 = earlier(0), x1 = kTaps > 2 ? earlier(1) : zero, x2 = kTaps > 3 ? earlier(2) : zero;
    const float* x = r.x + c;
    float* y = r.y + c;
    for (int i = 0; i < r.n; ++i, x += stride, y += n) {
      Vec16 now = hn::LoadU(d, x);
      if constexpr (kGated) now = hn::Mul(now, hn::LoadU(d, x + 2 * n));
      Vec16 sum = hn::MulAdd(x0, w0, bias);
      if constexpr (kTaps == 2) {
        sum = hn::MulAdd(now, w1, sum);
        x0 = now;
      } else if constexpr (kTaps == 3) {
        sum = hn::MulAdd(now, w2, hn::MulAdd(x1, w1, sum));
        x0 = x1, x1 = now;
      } else {
        sum = hn::MulAdd(now, w3, hn::MulAdd(x2, w2, hn::MulAdd(x1, w1, sum)));
        x0 = x1, x1 = x2, x2 = now;
      }
      if constexpr (kGated) {
        sum = hn::Mul(sum, hn::LoadU(d, x + n));
      } else {
        sum = silu(d, sum);
      }
      hn::StoreU(sum, d, y);
    }
    hn::StoreU(x0, d, r.after + c);
    if constexpr (kTaps > 2) hn::StoreU(x1, d, r.after + n + c);
    if constexpr (kTaps > 3) hn::StoreU(x2, d, r.after + 2 * n + c);
  }
}

void convolve_channels(const ConvRows& r, int begin, int end) {
  const bool gated = r.form == ConvForm::kGated;
  switch (r.n_taps) {
    case 2:
      return gated ? walk<2, true>(r, begin, end) : walk<2, false>(r, begin, end);
    case 3:
      return gated ? walk<3, true>(r, begin, end) : walk<3, false>(r, begin, end);
    default:
      return gated ? walk<4, true>(r, begin, end) : walk<4, false>(r, begin, end);
  }
}

}  // namespace coppice::recurrent::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::recurrent {

namespace {

HWY_EXPORT(convolve_channels);

}  // namespace

void convolve(const ConvRows& rows, int begin, int end) {
  COPPICE_SIMD_CALL(convolve_channels)(rows, begin, end);
}

}  // namespace coppice::recurrent
#endif  // HWY_ONCE
