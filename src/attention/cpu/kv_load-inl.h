// How kernels load a head's keys or values from a slot's row, for each KV format, and what else they share. Included once
// for each instruction set.

// clang-format off
#if defined(COPPICE_KV_LOAD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_KV_LOAD_INL
#undef COPPICE_KV_LOAD_INL
#else
#define COPPICE_KV_LOAD_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct LoadF16 {
  static constexpr std::size_t bytes(int n) { return static_cast<std::size_t>(n) * sizeof(hwy::float16_t); }

  /// Values [i, i + lanes) of the head at `head`.
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* head, int i) {
    const hn::Rebind<hwy::float16_t, D> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(head) + i));
  }
};

/// Asks for one slot's row of a head in a block that comes later. Blocks lie anywhere, which no hardware prefetcher can
/// know; a row at a time, or the core's few fill buffers stall everything else; into L2, as L1 holds the block at hand.
template <class Load>
HWY_INLINE void prefetch(const std::byte* head, std::size_t row_bytes, int slot, int head_dim) {
  const std::byte* row = head + row_bytes * static_cast<std::size_t>(slot);
  for (std::size_t i = 0; i < Load::bytes(head_dim); i += 64) __builtin_prefetch(row + i, 0, 2);
}

/// exp(x) for x <= 0, to 2e-7 near 0; 0 for x < -87 and for NaN. Half the operations of the library's, which is exact to the
/// last bits and minds positive x: softmax spends a fifth of a tile's time here. 2^(n + f) with n whole and |f| <= 1/2; the
/// polynomial for 2^f is the minimax one of degree 5, in relative error (7.5e-8).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V t = hn::Mul(x, hn::Set(d, 1.44269504F));
  const auto n = hn::NearestInt(t);
  const V f = hn::Sub(t, hn::ConvertTo(d, n));
  V p = hn::MulAdd(hn::Set(d, 0.00132764720F), f, hn::Set(d, 0.00967554133F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555071327F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240221197F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693146967F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.00000007F));
  const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -87.0F)), y);
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_KV_LOAD_INL
