// The loops of a tile of few queries over f16: vectors run along the head's values, each key is converted once for up
// to four queries. And what they share with the loops over codes (few_codes-inl.h). Included once for each instruction
// set.

// clang-format off
#if defined(COPPICE_FEW_FLOAT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_FEW_FLOAT_INL
#undef COPPICE_FEW_FLOAT_INL
#else
#define COPPICE_FEW_FLOAT_INL
#endif
// clang-format on

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "attention/cpu/kv_load-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Queries are whole numbers where keys are codes.
template <class Load>
using FewQuery = std::conditional_t<kScaled<Load>, std::int16_t, float>;

/// What a group of queries of one key head needs for a block.
template <class Load>
struct FewBlock {
  const std::byte* keys;           ///< the head's row of the block's slot 0
  const std::byte* values;         ///< the head's row of the block's slot 0
  const std::byte* ahead_of_keys;  ///< slot 0's row of what comes later, fetched while keys are multiplied; or nullptr
  const std::byte* ahead_of_values;  ///< the same, fetched while values are multiplied
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

template <class Load, int Group>
HWY_INLINE void few_scores(const FewBlock<Load>& b) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int slot = b.begin / kSlots * kSlots; slot < b.end; slot += kSlots) {
    V sums[Group][kSlots];
    for (auto& q : sums) {
      for (V& s : q) s = hn::Zero(d);
    }
    const std::byte* row = b.keys + b.row_bytes * static_cast<std::size_t>(slot);
    if (b.ahead_of_keys) {
      for (int s = 0; s < kSlots; ++s) prefetch<Load>(b.ahead_of_keys, b.row_bytes, slot + s, b.head_dim);
    }
    for (int i = 0; i < b.head_dim; i += lanes) {
      V key[kSlots];
      for (int s = 0; s < kSlots; ++s) key[s] = Load::load(d, row + b.row_bytes * static_cast<std::size_t>(s), i);
      for (int q = 0; q < Group; ++q) {
        const V query = hn::Load(d, b.queries + q * b.head_dim + i);
        for (int s = 0; s < kSlots; ++s) sums[q][s] = hn::MulAdd(query, key[s], sums[q][s]);
      }
    }
    for (int q = 0; q < Group; ++q) {
      hn::Store(sum_four(d, sums[q][0], sums[q][1], sums[q][2], sums[q][3]), hn::FixedTag<float, kSlots>(),
                b.scores + q * b.stride + slot);
    }
  }
}

template <class Load, int Group, int Vectors>
HWY_INLINE void few_values_of(const FewBlock<Load>& b, int at) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  V acc[Group][Vectors];
  for (int q = 0; q < Group; ++q) {
    for (int v = 0; v < Vectors; ++v) acc[q][v] = hn::Load(d, b.acc + q * b.head_dim + at + v * lanes);
  }
  for (int slot = b.begin; slot < b.end; ++slot) {
    const std::byte* row = b.values + b.row_bytes * static_cast<std::size_t>(slot);
    if (at == 0 && b.ahead_of_values) prefetch<Load>(b.ahead_of_values, b.row_bytes, slot, b.head_dim);
    V value[Vectors];
    for (int v = 0; v < Vectors; ++v) value[v] = Load::load(d, row, at + v * lanes);
    for (int q = 0; q < Group; ++q) {
      const V p = hn::Set(d, b.scores[q * b.stride + slot]);
      for (int v = 0; v < Vectors; ++v) acc[q][v] = hn::MulAdd(p, value[v], acc[q][v]);
    }
  }
  for (int q = 0; q < Group; ++q) {
    for (int v = 0; v < Vectors; ++v) hn::Store(acc[q][v], d, b.acc + q * b.head_dim + at + v * lanes);
  }
}

template <class Load, int Group>
HWY_INLINE void few_values(const FewBlock<Load>& b) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + 4 * lanes <= b.head_dim; i += 4 * lanes) few_values_of<Load, Group, 4>(b, i);
  for (; i < b.head_dim; i += lanes) few_values_of<Load, Group, 1>(b, i);
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_FEW_FLOAT_INL
