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

#include <array>
#include <cstddef>
#include <cstdint>

#include "attention/cpu/rotate-inl.h"
#include "attention/kv_format.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Each format: load(d, head, i) is values [i, i + lanes) of the head at `head` as f32, still to be multiplied by its scale
// where it has one; then codes(d16, head, i) is the same as 16-bit whole numbers.

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
    if constexpr (hn::MaxLanes(D16()) == 32) {  // REQUIRES: i is a multiple of 32
      const hn::Repartition<std::uint16_t, decltype(bytes)> words;
      alignas(32) static constexpr std::uint16_t kShifts[16] = {0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4};
      const auto twice = hn::BitCast(words, hn::LoadDup128(bytes, codes + i / 2));
      const auto shifted = hn::BitCast(bytes, hn::Shr(twice, hn::Load(words, kShifts)));
      return hn::PromoteTo(d16, levels_of(hn::And(shifted, hn::Set(bytes, 15))));
    } else {
      const auto pairs = hn::LoadU(bytes, codes + i / 32 * 16 + i % 16);
      const auto index = i % 32 >= 16 ? hn::ShiftRight<4>(pairs) : hn::And(pairs, hn::Set(bytes, 15));
      return hn::PromoteTo(d16, levels_of(index));
    }
  }

 private:
  /// index: bytes below 16.
  template <class V>
  static HWY_INLINE auto levels_of(V index) {
    const hn::RebindToSigned<hn::DFromV<V>> level;
    const hn::FixedTag<std::int8_t, 16> table;  // of at least a whole 128-bit block
    if constexpr (hn::MaxLanes(level) > 16) {
      return hn::TableLookupBytes(hn::LoadDup128(level, kTurbo4Levels.data()), hn::BitCast(level, index));
    } else {
      return hn::TableLookupBytes(hn::LoadU(table, kTurbo4Levels.data()), hn::BitCast(level, index));
    }
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

/// The larger one, and `best` where x is NaN: a key with infinite channels of both signs weighs nothing.
template <class V>
HWY_INLINE V larger(V best, V x) {
  return hn::IfThenElse(hn::Lt(best, x), x, best);
}

/// Slots that are reduced together: the lanes of a 128-bit block.
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

constexpr float kLog2E = 1.44269504F;

/// 2^x for x <= 0, to 2e-7 near 0; 0 for x < -125 and for NaN. Half the operations of the library's exponential, which is
/// exact to the last bits and minds positive x: softmax spends a good tenth of a tile's time here. 2^(n + f) with n whole and
/// |f| <= 1/2; the polynomial for 2^f is the minimax one of degree 5, in relative error (7.5e-8).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp2_of(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V big = hn::Set(d, 12582912.0F);  // 1.5 * 2^23: the sum's last bits are x, rounded
  const V rounded = hn::Add(x, big);
  const auto n = hn::BitCast(di, rounded);
  const V f = hn::Sub(x, hn::Sub(rounded, big));
  V p = hn::MulAdd(hn::Set(d, 0.00132764720F), f, hn::Set(d, 0.00967554133F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555071327F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240221197F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693146967F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.00000007F));
  const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(n)));
  return hn::IfThenElseZero(hn::Ge(x, hn::Set(d, -125.0F)), y);
}

/// exp(x) likewise.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_of(D d, V x) {
  return exp2_of(d, hn::Mul(x, hn::Set(d, kLog2E)));
}

/// exp(part - max), by which what was summed up below `part` is to be scaled. Exactly 1 where they are equal, both -inf
/// included: an error of one last bit at every block would add up over a long prefix.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V rescale_of(D d, V part, V max) {
  return hn::IfThenElse(hn::Eq(part, max), hn::Set(d, 1.0F), exp_of(d, hn::Sub(part, max)));
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_KV_LOAD_INL
