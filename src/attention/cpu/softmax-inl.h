// Softmax piece by piece (Milakov & Gimelshein 2018, "Online normalizer calculation for softmax", section 3), and the
// one exponential that all kernels of this folder use. Scores are in base 2 here: queries are scaled by log2(e), and so
// is the cap of scores; the partial states that a tile leaves are brought back to base e. Included once for each
// instruction set.

// clang-format off
#if defined(COPPICE_SOFTMAX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SOFTMAX_INL
#undef COPPICE_SOFTMAX_INL
#else
#define COPPICE_SOFTMAX_INL
#endif
// clang-format on

#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kLog2E = 1.44269504F, kLn2 = 0.693147181F;

/// 2^x for x <= 0, to 2e-7, and exactly 1 at 0; 0 for x < -125, -inf and NaN. 2^(n + f) with n whole and 0 <= f <= 1;
/// the polynomial for 2^f is the minimax one of degree 5, in relative error, of those that are 1 at 0. The library's
/// exponential takes twice as many operations for its last bits and for positive x; softmax is a good tenth of a tile's
/// time here.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of(D d, V x) {
  const auto polynomial = [d](V f) HWY_ATTR {
    V p = hn::MulAdd(hn::Set(d, 0.0018775767F), f, hn::Set(d, 0.0089893397F));
    p = hn::MulAdd(p, f, hn::Set(d, 0.0558263175F));
    p = hn::MulAdd(p, f, hn::Set(d, 0.2401536107F));
    p = hn::MulAdd(p, f, hn::Set(d, 0.6931530833F));
    return hn::MulAdd(p, f, hn::Set(d, 1.0F));
  };
  const V least = hn::Set(d, -125.0F);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(D()) == 16) {
    const __mmask16 some = _mm512_cmp_ps_mask(x.raw, least.raw, _CMP_GE_OQ);
    const V f{_mm512_reduce_ps(x.raw, 0x09)};  // x - floor(x)
    return V{_mm512_maskz_scalef_ps(some, polynomial(f).raw, x.raw)};
  }
#endif
  const hn::RebindToSigned<D> di;
  const V big = hn::Set(d, 12582912.0F);  // 1.5 * 2^23: the sum's last bits are x - 1/2, rounded
  const V rounded = hn::Add(hn::Sub(x, hn::Set(d, 0.5F)), big);
  const V p = polynomial(hn::Sub(x, hn::Sub(rounded, big)));
  const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, rounded))));
  return hn::IfThenElseZero(hn::Ge(x, least), y);
}

/// c * tanh(x / c), to 2e-7 of c. (1 - e) / (1 + e) with e = exp(-2 |x| / c), and the sign of x.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V softcapped(D d, V x, V c) {
  const V one = hn::Set(d, 1.0F);
  const V e = exp2_of(d, hn::Mul(hn::Abs(x), hn::Div(hn::Set(d, -2.0F * kLog2E), c)));
  return hn::CopySign(hn::Mul(c, hn::Div(hn::Sub(one, e), hn::Add(one, e))), x);
}

/// The larger one, and `best` where x is NaN: a key with infinite channels of both signs weighs nothing.
template <class V>
HWY_INLINE V larger(V best, V x) {
  return hn::IfThenElse(hn::Lt(best, x), x, best);
}

/// Some new scores of queries, one query in each lane (or one in all lanes), become weights.
template <class D>
class OnlineSoftmax {
 public:
  using V = hn::Vec<D>;

  OnlineSoftmax() = default;
  /// old_max: the largest score so far, -inf at first. best: the largest of the new ones, -inf if the query sees none.
  HWY_INLINE OnlineSoftmax(D d, V old_max, V best)
      : d_(d),
        old_max_(old_max),
        max_(hn::Max(old_max, best)),
        // A query that has seen nothing yet has -inf, and -inf minus that would be no number.
        from_(hn::Max(max_, hn::Set(d, hwy::LowestValue<float>()))),
        total_(hn::Zero(d)) {}

  /// A score's weight: 2^(score - largest).
  HWY_INLINE V weight(V score) {
    const V p = exp2_of(d_, hn::Sub(score, from_));
    total_ = hn::Add(total_, p);
    return p;
  }

  HWY_INLINE V max() const { return max_; }
  /// What was summed up so far is to be multiplied by this: exactly 1 where the largest score is the same as before. An
  /// error of one last bit at every block would add up over a long prefix.
  HWY_INLINE V rescale() const { return exp2_of(d_, hn::Sub(old_max_, from_)); }
  /// The sum of the weights.
  HWY_INLINE V total() const { return total_; }

 private:
  D d_;
  V old_max_, max_, from_, total_;
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SOFTMAX_INL
