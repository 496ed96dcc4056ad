// The inner loops of a tile of few queries over keys and values that are codes: products of 16-bit whole numbers, twice
// as many in a vector as f32 ones, and no conversion to f32. Included once for each instruction set.
//
// A query, and a block's weights times the values' scales, are rounded to 16 bits of their own largest: by at most
// 2^-16 of it, where a code is rounded to 2^-8 of its head's largest. Queries of heads of over 512 values have 15 bits,
// because sums must fit into 32: a code is at most 128, so a score is at most 128 * 32,767 * 512 < 2^31, or 128 *
// 16,383 * kMaxRotated < 2^31, and a block's weighted sum at most 128 * 32,767 * kMaxSlots < 2^31.

// clang-format off
#if defined(COPPICE_FEW_CODES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_FEW_CODES_INL
#undef COPPICE_FEW_CODES_INL
#else
#define COPPICE_FEW_CODES_INL
#endif
// clang-format on

#include <algorithm>
#include <cstring>

#include "attention/cpu/few_float-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Values as multiples of the unit returned, which makes the largest `most`. at(i): values [i, i + lanes), twice.
/// REQUIRES: n is a multiple of a vector's lanes.
template <class At>
HWY_INLINE float to_whole(int n, float most, At&& at, std::int16_t* to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int16_t, decltype(d)> d16;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) largest = hn::Max(largest, hn::Abs(at(i)));
  const float max = hn::GetLane(hn::MaxOfLanes(d, largest));
  const auto inverse = hn::Set(d, max > 1e-30F ? most / max : 0.0F);  // less is nothing, and would overflow
  for (int i = 0; i < n; i += lanes) {
    hn::StoreU(hn::DemoteTo(d16, hn::NearestInt(hn::Mul(at(i), inverse))), d16, to + i);
  }
  return max / most;
}

HWY_INLINE float whole_query(const float* query, int n, std::int16_t* to) {
  const hn::ScalableTag<float> d;
  return to_whole(n, n <= 512 ? 32767.0F : 16383.0F, [&](int i) HWY_ATTR { return hn::Load(d, query + i); }, to);
}

/// Scores still lack the keys' scales.
template <class Load, int Group>
HWY_INLINE void code_scores(const FewBlock<Load>& b) {
  const CodeTag d16;
  const hn::RepartitionToWide<CodeTag> d32;
  using V = hn::Vec<decltype(d32)>;
  const int lanes = static_cast<int>(hn::Lanes(d16));
  for (int slot = b.begin / kSlots * kSlots; slot < b.end; slot += kSlots) {
    V sums[Group][kSlots], more[Group][kSlots];
    for (int q = 0; q < Group; ++q) {
      for (int s = 0; s < kSlots; ++s) sums[q][s] = more[q][s] = hn::Zero(d32);
    }
    const std::byte* row = b.keys + b.row_bytes * static_cast<std::size_t>(slot);
    if (b.ahead_of_keys) {
      for (int s = 0; s < kSlots; ++s) prefetch<Load>(b.ahead_of_keys, b.row_bytes, slot + s, b.head_dim);
    }
    for (int i = 0; i < b.head_dim; i += lanes) {
      hn::Vec<CodeTag> key[kSlots];
      for (int s = 0; s < kSlots; ++s) key[s] = Load::codes(d16, row + b.row_bytes * static_cast<std::size_t>(s), i);
      for (int q = 0; q < Group; ++q) {
        const auto query = hn::LoadU(d16, b.queries + q * b.head_dim + i);
        for (int s = 0; s < kSlots; ++s) add_products(d16, query, key[s], sums[q][s], more[q][s]);
      }
    }
    for (int q = 0; q < Group; ++q) {
      for (int s = 0; s < kSlots; ++s) sums[q][s] = hn::Add(sums[q][s], more[q][s]);
      const hn::FixedTag<float, kSlots> four;
      const auto total = hn::ConvertTo(four, sum_four(d32, sums[q][0], sums[q][1], sums[q][2], sums[q][3]));
      hn::Store(hn::Mul(total, hn::Set(four, b.units[q])), four, b.scores + q * b.stride + slot);
    }
  }
}

/// Scales of slots [begin, end) of a head, each at its slot's place; elsewhere 0. Made long before they are asked for:
/// a vector load waits for the short stores that it covers.
class CodeScales {
 public:
  HWY_INLINE CodeScales(const std::byte* head, std::size_t row_bytes, int begin, int end) {
    for (int s = begin; s < end; ++s) {
      std::memcpy(halves_ + s, head + row_bytes * static_cast<std::size_t>(s), sizeof(std::uint16_t));
    }
  }

  /// Of slots [s, s + lanes).
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, int s) const {
    const hn::Rebind<hwy::float16_t, D> half;
    return hn::PromoteTo(d, hn::Load(half, reinterpret_cast<const hwy::float16_t*>(halves_) + s));
  }

 private:
  HWY_ALIGN std::uint16_t halves_[TileScratch::kMaxSlots] = {};
};

/// Scores times their slots' scales.
template <class Load, int Group>
HWY_INLINE void code_scale(const FewBlock<Load>& b, const CodeScales& scales) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int s = b.begin / lanes * lanes; s < b.end; s += lanes) {
    const auto scale = scales.load(d, s);
    for (int q = 0; q < Group; ++q) {
      float* scores = b.scores + q * b.stride + s;
      hn::Store(hn::Mul(hn::Load(d, scores), scale), d, scores);
    }
  }
}

/// Two slots at a time: their values lie side by side, as their weights do. So the sums of a stretch of `lanes` values
/// come out as two vectors, of every other four values each (put_in_order).
template <class Load, int Group, int Vectors>
HWY_INLINE void code_values_of(const FewBlock<Load>& b, const std::int16_t* weights, const float* units, int at) {
  const CodeTag d16;
  const hn::RepartitionToWide<CodeTag> d32;
  const hn::RebindToFloat<decltype(d32)> d;
  using V = hn::Vec<decltype(d32)>;
  const int lanes = static_cast<int>(hn::Lanes(d16)), half = lanes / 2;
  V acc[Group][2 * Vectors], more[Group][2 * Vectors];
  for (int q = 0; q < Group; ++q) {
    for (int v = 0; v < 2 * Vectors; ++v) acc[q][v] = more[q][v] = hn::Zero(d32);
  }
  for (int slot = b.begin / 2 * 2; slot < b.end; slot += 2) {
    const std::byte* row = b.values + b.row_bytes * static_cast<std::size_t>(slot);
    if (at == 0 && b.ahead_of_values) {
      for (int s = 0; s < 2; ++s) prefetch<Load>(b.ahead_of_values, b.row_bytes, slot + s, b.head_dim);
    }
    hn::Vec<CodeTag> both[2 * Vectors];
    for (int v = 0; v < Vectors; ++v) {
      const auto one = Load::codes(d16, row, at + v * lanes),
                 other = Load::codes(d16, row + b.row_bytes, at + v * lanes);
      both[2 * v] = hn::InterleaveLower(d16, one, other);
      both[2 * v + 1] = hn::InterleaveUpper(d16, one, other);
    }
    for (int q = 0; q < Group; ++q) {
      std::int32_t pair = 0;
      std::memcpy(&pair, weights + q * TileScratch::kMaxSlots + slot, sizeof pair);
      const auto w = hn::BitCast(d16, hn::Set(d32, pair));
      for (int v = 0; v < 2 * Vectors; ++v) add_products(d16, both[v], w, acc[q][v], more[q][v]);
    }
  }
  for (int q = 0; q < Group; ++q) {
    for (int v = 0; v < 2 * Vectors; ++v) {
      float* to = b.acc + q * b.head_dim + at + v * half;
      const auto sum = hn::ConvertTo(d, hn::RearrangeToOddPlusEven(acc[q][v], more[q][v]));
      hn::Store(hn::MulAdd(sum, hn::Set(d, units[q]), hn::Load(d, to)), d, to);
    }
  }
}

template <class Load, int Group>
HWY_INLINE void code_values(const FewBlock<Load>& b, const CodeScales& scales) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d)), lanes16 = static_cast<int>(hn::Lanes(CodeTag()));
  HWY_ALIGN std::int16_t weights[Group * TileScratch::kMaxSlots];
  float units[Group];
  const int first = b.begin / lanes * lanes, n = (b.end - first + lanes - 1) / lanes * lanes;
  for (int q = 0; q < Group; ++q) {
    const auto weight = [&](int i) HWY_ATTR {
      return hn::Mul(hn::Load(d, b.scores + q * b.stride + first + i), scales.load(d, first + i));
    };
    units[q] = to_whole(n, 32767.0F, weight, weights + q * TileScratch::kMaxSlots + first);
  }
  int i = 0;
  for (; i + 2 * lanes16 <= b.head_dim; i += 2 * lanes16) code_values_of<Load, Group, 2>(b, weights, units, i);
  if (i < b.head_dim) code_values_of<Load, Group, 1>(b, weights, units, i);
}

/// A head's sums as code_values leaves them, in the order of its values.
HWY_INLINE void put_in_order(const float* acc, int head_dim, float* to) {
  const int lanes = static_cast<int>(hn::Lanes(CodeTag()));
  for (int at = 0; at < head_dim; at += lanes) {
    for (int i = 0; i < lanes; i += 8) {
      std::copy_n(acc + at + i / 2, 4, to + at + i);
      std::copy_n(acc + at + (lanes + i) / 2, 4, to + at + i + 4);
    }
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_FEW_CODES_INL
