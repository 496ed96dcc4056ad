// x * sigmoid(x) of vectors. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_SILU_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_SILU_INL
#undef COPPICE_SILU_INL
#else
#define COPPICE_SILU_INL
#endif
// clang-format on

#include "attention/cpu/softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::recurrent::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using attention::HWY_NAMESPACE::exp2_of;
using attention::HWY_NAMESPACE::kLog2E;

/// e^x for x <= 0: exp2_of().
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  return exp2_of(d, hn::Mul(x, hn::Set(d, kLog2E)));
}

/// x / (1 + e^-x), to 4e-7 of it.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu(D d, V x) {
  const V one = hn::Set(d, 1.0F), e = exp_of(d, hn::Neg(hn::Abs(x)));
  const V numerator = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Mul(x, e), x);
  return hn::Div(numerator, hn::Add(one, e));
}

}  // namespace coppice::recurrent::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SILU_INL
