// What the inner loops of a tile of few queries share. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_FEW_BLOCK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_FEW_BLOCK_INL
#undef COPPICE_FEW_BLOCK_INL
#else
#define COPPICE_FEW_BLOCK_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/cpu/kv_load-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Slots whose scores are reduced together: the lanes of a 128-bit block.
constexpr int kSlots = 4;

/// Calls visit with the longest vectors of 16-bit numbers that a head is a whole number of.
template <class Visit>
HWY_INLINE void with_code_vectors(int head_dim, Visit&& visit) {
  const hn::ScalableTag<std::int16_t> whole;
  const hn::CappedTag<std::int16_t, 16> always;
  if (hn::MaxLanes(whole) > 16 && head_dim % static_cast<int>(hn::Lanes(whole)) == 0) {
    visit(whole);
  } else {
    visit(always);
  }
}

/// Queries are whole numbers where keys are codes.
template <class Load>
using FewQuery = std::conditional_t<kScaled<Load>, std::int16_t, float>;

/// What a group of queries of one key head needs for a block.
template <class Load>
struct FewBlock {
  const std::byte* keys;         ///< the head's row of the block's slot 0
  const std::byte* values;       ///< likewise
  const std::byte* next_keys;    ///< the same head in the block that comes next: fetched meanwhile; or nullptr
  const std::byte* next_values;  ///< likewise
  std::size_t row_bytes;
  int head_dim;
  int begin, end;                 ///< slots that some query sees
  const FewQuery<Load>* queries;  ///< [Group][head_dim], scaled
  const float* units;             ///< [Group] what a query's numbers are multiples of, where they are whole
  float* acc;                     ///< [Group][head_dim], in the order of the values' loop
  float* max;                     ///< [Group]
  float* sum;                     ///< [Group]
  float* scores;                  ///< [Group][stride]
  int stride;
};

/// All lanes of each of four vectors put together by `op`, as four lanes.
template <class D, class Op, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::FixedTag<hn::TFromD<D>, kSlots>> fold_four(D d, Op op, V a, V b, V c, V e) {
  const hn::RepartitionToWide<D> wide;
  const V ab = op(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V ce = op(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto x = hn::BitCast(wide, ab), y = hn::BitCast(wide, ce);
  const V all = op(hn::BitCast(d, hn::InterleaveLower(wide, x, y)), hn::BitCast(d, hn::InterleaveUpper(wide, x, y)));
  // Each stretch of four lanes now holds its own part of the four results, in order.
  const auto fold = [&](auto self, auto tag, auto v) HWY_ATTR {
    if constexpr (hn::MaxLanes(tag) == kSlots) {
      return v;
    } else {
      const hn::Half<decltype(tag)> half;
      return self(self, half, op(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
    }
  };
  return fold(fold, d, all);
}

/// Sums of the lanes of four vectors, as four lanes.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::FixedTag<hn::TFromD<D>, kSlots>> sum_four(D d, V a, V b, V c, V e) {
  return fold_four(d, [](auto x, auto y) HWY_ATTR { return hn::Add(x, y); }, a, b, c, e);
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_FEW_BLOCK_INL
