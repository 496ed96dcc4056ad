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

/// Queries are whole numbers where keys are codes.
template <class Load>
using FewQuery = std::conditional_t<kScaled<Load>, std::int16_t, float>;

/// What a group of queries of one key head needs for a block.
template <class Load>
struct FewBlock {
  const std::byte* keys;           ///< the head's row of the block's slot 0
  const std::byte* values;         ///< likewise
  const std::byte* ahead_of_keys;  ///< slot 0's row of what comes later, fetched while keys are multiplied; or nullptr
  const std::byte* ahead_of_values;  ///< likewise while values are
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

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_FEW_BLOCK_INL
