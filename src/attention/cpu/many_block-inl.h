// What the loops of a tile of many queries share: one key head of the tile, and a block of its keys. Queries are columns of
// vectors. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_MANY_BLOCK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MANY_BLOCK_INL
#undef COPPICE_MANY_BLOCK_INL
#else
#define COPPICE_MANY_BLOCK_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/cpu/tile_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Registers decide how many keys (or values) meet how many vectors of queries at a time.
constexpr int kMany = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 8 : 4;
constexpr int kManyVectors = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 3 : 2;

static_assert(TileScratch::kKeysAtOnce % kMany == 0);

/// Whether the last columns may be half a vector.
constexpr bool kHalfVectors = hn::MaxLanes(hn::ScalableTag<float>()) == 16;

/// One key head of a tile, and its states so far. Element [i][q] lies at i * stride + q.
struct ManyHead {
  int head_dim;
  int columns;                  ///< queries, padded to what is computed
  int stride;                   ///< and to whole vectors
  float* acc;                   ///< [head_dim][stride]
  float* max;                   ///< [stride]
  float* sum;                   ///< [stride]
  const std::int32_t *lo, *hi;  ///< [stride] visible slots, counted from the run's first
};

/// Slots of a block that some column sees.
struct ManyBlock {
  int n;
  int slot0;  ///< the first one's place in the run
};

/// Where the keys, or the values, of these slots lie.
struct ManyRows {
  const std::byte* first;
  const std::byte* next;  ///< the same slot in the block that comes next: fetched meanwhile; or nullptr
  std::size_t row_bytes;

  [[nodiscard]] HWY_INLINE const std::byte* row(int i) const { return first + row_bytes * static_cast<std::size_t>(i); }
};

/// Scores of slots that a column doesn't see become -inf. scores: [n][Vectors * lanes].
template <int Vectors, class D>
HWY_INLINE void hide(D d, const ManyHead& h, const ManyBlock& b, int at, float* scores) {
  const hn::RebindToSigned<D> di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int v = 0; v < Vectors; ++v) {
    const auto lo = hn::Load(di, h.lo + at + v * lanes), hi = hn::Load(di, h.hi + at + v * lanes);
    for (int k = 0; k < b.n; ++k) {
      const auto slot = hn::Set(di, b.slot0 + k);
      const auto visible = hn::RebindMask(d, hn::AndNot(hn::Lt(slot, lo), hn::Lt(slot, hi)));
      float* score = scores + (k * Vectors + v) * lanes;
      hn::Store(hn::IfThenElse(visible, hn::Load(d, score), none), d, score);
    }
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_MANY_BLOCK_INL
