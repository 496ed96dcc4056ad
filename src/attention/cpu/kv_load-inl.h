// How kernels load a head's keys or values from a slot's row, for each KV format. Included once for each instruction
// set.

// clang-format off
#if defined(COPPICE_KV_LOAD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_KV_LOAD_INL
#undef COPPICE_KV_LOAD_INL
#else
#define COPPICE_KV_LOAD_INL
#endif
// clang-format on

#include <hwy/contrib/math/math-inl.h>
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

/// exp(x) for x <= 0; 0 for x < -104 and for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  return hn::Exp(d, x);
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_KV_LOAD_INL
