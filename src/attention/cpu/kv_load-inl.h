// How kernels load a head's keys or values from a slot's row, for each KV format, and what else they share. Included
// once for each instruction set.

// clang-format off
#if defined(COPPICE_KV_LOAD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_KV_LOAD_INL
#undef COPPICE_KV_LOAD_INL
#else
#define COPPICE_KV_LOAD_INL
#endif
// clang-format on

#include <array>
#include <cstddef>
#include <cstdint>

#include "attention/cpu/rotate-inl.h"
#include "attention/kv_format.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Each format: load(d, head, i) is values [i, i + lanes) of the head at `head` as f32, still to be multiplied by its
// scale where it has one; then codes(d16, head, i) is the same as 16-bit whole numbers.

struct LoadF16 {
  static constexpr KvFormat kFormat = KvFormat::kF16;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* head, int i) {
    const hn::Rebind<hwy::float16_t, D> half;
    return hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(head) + i));
  }
};

constexpr int kScaleBytes = 2;

struct LoadInt8 {
  static constexpr KvFormat kFormat = KvFormat::kInt8;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* head, int i) {
    const hn::RebindToSigned<D> wide;
    const hn::Rebind<std::int8_t, D> bytes;
    const auto* codes = reinterpret_cast<const std::int8_t*>(head + kScaleBytes);
    return hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(bytes, codes + i)));
  }

  template <class D16>
  static HWY_INLINE hn::Vec<D16> codes(D16 d16, const std::byte* head, int i) {
    const hn::Rebind<std::int8_t, D16> bytes;
    return hn::PromoteTo(d16, hn::LoadU(bytes, reinterpret_cast<const std::int8_t*>(head + kScaleBytes) + i));
  }
};

struct LoadTurbo4 {
  static constexpr KvFormat kFormat = KvFormat::kTurbo4;

  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* head, int i) {
    const hn::RebindToSigned<D> wide;
    const hn::Rebind<std::uint8_t, D> bytes;
    const auto* codes = reinterpret_cast<const std::uint8_t*>(head + kScaleBytes);
    const auto pairs = hn::LoadU(bytes, codes + i / 32 * 16 + i % 16);
    const bool high = i % 32 >= 16;
    if constexpr (hn::MaxLanes(D()) == 16) {  // one lookup in a register of 16 floats
      static constexpr auto kLevels = [] {
        std::array<float, 16> levels{};
        for (std::size_t k = 0; k < 16; ++k) levels[k] = kTurbo4Levels[k];
        return levels;
      }();
      const auto both = hn::PromoteTo(wide, pairs);
      const auto index = high ? hn::ShiftRight<4>(both) : hn::And(both, hn::Set(wide, 15));
      return hn::TableLookupLanes(hn::LoadU(d, kLevels.data()), hn::IndicesFromVec(d, index));
    } else {
      const auto index = high ? hn::ShiftRight<4>(pairs) : hn::And(pairs, hn::Set(bytes, 15));
      return hn::ConvertTo(d, hn::PromoteTo(wide, levels_of(index)));
    }
  }

  template <class D16>
  static HWY_INLINE hn::Vec<D16> codes(D16 d16, const std::byte* head, int i) {
    const hn::Rebind<std::uint8_t, D16> bytes;
    const auto* codes = reinterpret_cast<const std::uint8_t*>(head + kScaleBytes);
    const auto pairs = hn::LoadU(bytes, codes + i / 32 * 16 + i % 16);
    const auto index = i % 32 >= 16 ? hn::ShiftRight<4>(pairs) : hn::And(pairs, hn::Set(bytes, 15));
    return hn::PromoteTo(d16, levels_of(index));
  }

 private:
  /// index: bytes below 16.
  template <class V>
  static HWY_INLINE auto levels_of(V index) {
    const hn::RebindToSigned<hn::DFromV<V>> level;
    const hn::FixedTag<std::int8_t, 16> table;  // of at least a whole 128-bit block
    return hn::TableLookupBytes(hn::LoadU(table, kTurbo4Levels.data()), hn::BitCast(level, index));
  }
};

/// Whether a head's values are to be multiplied by one scale.
template <class Load>
constexpr bool kScaled = Load::kFormat != KvFormat::kF16;

/// REQUIRES: kScaled.
HWY_INLINE float scale_of(const std::byte* head) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  return hn::GetLane(hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(head))));
}

/// A query as the format's keys want it.
template <class Load>
HWY_INLINE void take_query(const float* from, float scale, int n, float* to) {
  if constexpr (is_rotated(Load::kFormat)) {
    rotate(from, scale, n, to);
  } else {
    for (int i = 0; i < n; ++i) to[i] = from[i] * scale;
  }
}

/// Calls visit with the loader of a format.
template <class Visit>
HWY_INLINE std::uint64_t with_loader(KvFormat format, Visit&& visit) {
  switch (format) {
    case KvFormat::kF16:
      return visit(LoadF16());
    case KvFormat::kInt8:
      return visit(LoadInt8());
    case KvFormat::kTurbo4:
      return visit(LoadTurbo4());
  }
  return 0;
}

/// Slots that are reduced together: the lanes of a 128-bit block.
constexpr int kSlots = 4;

/// Vectors of 16-bit numbers: heads are a multiple of 16 long. Twice as long ones, where there are some, gain nothing
/// (docs/decisions.md, "One tile driver").
using CodeTag = hn::CappedTag<std::int16_t, 16>;

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

/// Asks for one slot's row of a head that comes later. Blocks lie anywhere, which no hardware prefetcher can
/// know; a row at a time, or the core's few fill buffers stall everything else; into L2, as L1 holds the block at hand.
template <class Load>
HWY_INLINE void prefetch(const std::byte* head, std::size_t row_bytes, int slot, int head_dim) {
  const std::byte* row = head + row_bytes * static_cast<std::size_t>(slot);
  for (std::size_t i = 0; i < head_bytes(Load::kFormat, head_dim); i += 64) __builtin_prefetch(row + i, 0, 2);
}

/// sum (and more) + the products of 16-bit numbers, neighbours' added up in 32 bits; which pairs go to `more`, and
/// whether any do, is the instruction set's own: sum + more is meant, or RearrangeToOddPlusEven of both.
template <class D16, class V32>
HWY_INLINE void add_products([[maybe_unused]] D16 d16, hn::Vec<D16> a, hn::Vec<D16> b, V32& sum,
                             [[maybe_unused]] V32& more) {
#if HWY_TARGET == HWY_AVX3_DL
  // Not the intrinsic: clang 19 makes two instructions of it where it takes them to be as fast, and AVX-VNNI's of those
  // of 256 bits, which the processor may lack (simd/kernel-inl.h).
  asm("%{evex%} vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
#else
  sum = hn::ReorderWidenMulAccumulate(hn::RepartitionToWide<D16>(), a, b, sum, more);
#endif
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_KV_LOAD_INL
