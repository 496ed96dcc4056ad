// Tiles of many queries (tile_kernel.cpp): vectors run across queries, which are columns. A head's keys and values of a
// block are converted once, then every element is broadcast against vectors of queries: scores, softmax and weighted
// values are all vertical. Bound by multiply-adds. Included once for each instruction set.
//
// Products is what multiplies: numbers of f32 (many_float-inl.h), or of 16 bits (many_whole-inl.h). It has
//   set_query(column, query)                        makes a query ready; [head_dim], scaled; nullptr: zeros
//   set_block<Load>(n, keys, values)                makes a block's n keys and values ready
//   score<Vectors>(d, n, at, scores)                scores[n][Vectors * lanes] of the columns from `at` on, in base 2
//   weigh<Vectors>(d, softmax, n, v, scores)        makes vector v's scores weights
//   add_values<Vectors>(d, n, i, scores, rescale, acc)  acc[kMany][stride] := acc * rescale + the weighted values from
//                                                       i on

// clang-format off
#if defined(COPPICE_MANY_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MANY_INL
#undef COPPICE_MANY_INL
#else
#define COPPICE_MANY_INL
#endif
// clang-format on

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/softmax-inl.h"
#include "attention/cpu/tile.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Registers decide how many keys (or values) meet how many vectors of queries at a time.
constexpr int kMany = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 8 : 4;
constexpr int kManyVectors = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 3 : 2;

static_assert(TileScratch::kKeysAtOnce % kMany == 0);

/// Where the keys, or the values, of a block's slots lie.
struct ManyRows {
  const std::byte* first;
  const std::byte* next;  ///< the same slot in the block that comes next: fetched meanwhile; or nullptr
  std::size_t row_bytes;

  [[nodiscard]] HWY_INLINE const std::byte* row(int i) const { return first + row_bytes * static_cast<std::size_t>(i); }
};

/// States of one key head: acc [head_dim][stride], max and sum [stride].
template <class Load, class Products>
class ManyTile {
 public:
  ManyTile(const TileView& tile, TileScratch& scratch)
      : t_(tile),
        s_(scratch),
        stride_((tile.n_queries() + kLanes - 1) / kLanes * kLanes),
        products_(scratch, tile.head_dim(), stride_) {
    for (int q = 0; q < stride_; ++q) {  // padding sees what the last query sees
      const RowInterval& row = t_.interval(std::min(q, t_.n_queries() - 1));
      s_.lo()[q] = row.lo;
      s_.hi()[q] = row.hi;
    }
  }

  int heads_at_once() const { return 1; }
  int passes() const { return 1; }
  int slots_at_once(int slot) const { return t_.left_in_block(slot); }
  void begin_heads(int /*kv_head*/, int /*n*/) {}
  void begin_slots(int /*slot*/) {}

  void set_queries(int kv_head, int /*i*/) {
    for (int q = 0; q < t_.n_queries(); ++q) {
      float* query = s_.acc();  // free until now
      take_query<Load>(t_.query(kv_head, q), t_.heads().scale * kLog2E, t_.head_dim(), query);
      products_.set_query(q, query);
    }
    for (int q = t_.n_queries(); q < stride_; ++q) products_.set_query(q, nullptr);
    std::fill_n(s_.acc(), std::ptrdiff_t{t_.head_dim()} * stride_, 0.0F);
    std::fill_n(s_.max(), stride_, -std::numeric_limits<float>::infinity());
    std::fill_n(s_.sum(), stride_, 0.0F);
  }

  void attend(int kv_head, int /*i*/, int slot, int n) {
    const int block = t_.block_of(slot);
    const std::size_t offset = t_.row_bytes() * static_cast<std::size_t>(t_.place_of(slot));
    const auto rows = [&](const std::byte* first, const std::byte* next)
                          HWY_ATTR { return ManyRows{first + offset, next ? next + offset : nullptr, t_.row_bytes()}; };
    products_.template set_block<Load>(n, rows(t_.keys(block, kv_head), t_.keys(block + 1, kv_head)),
                                       rows(t_.values(block, kv_head), t_.values(block + 1, kv_head)));
    const hn::ScalableTag<float> d;
    int q = 0;
    for (; q + kManyVectors * kLanes <= stride_; q += kManyVectors * kLanes) {
      attend_columns<kManyVectors>(d, q, slot, n);
    }
    if constexpr (kManyVectors > 2) {
      if (q + 2 * kLanes <= stride_) attend_columns<2>(d, q, slot, n), q += 2 * kLanes;
    }
    if (q < stride_) attend_columns<1>(d, q, slot, n);
  }

  void store_states(int kv_head, int /*i*/) const {
    const int dim = t_.head_dim();
    for (int q = 0; q < t_.n_queries(); ++q) {
      float* to = t_.state(kv_head, q);
      for (int i = 0; i < dim; ++i) to[i] = s_.acc()[std::ptrdiff_t{i} * stride_ + q];
      to[dim] = s_.max()[q] * kLn2;
      to[dim + 1] = s_.sum()[q];
    }
  }

 private:
  static constexpr int kLanes = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>()));

  /// Slots [slot, slot + n) for columns [at, at + Vectors * lanes).
  template <int Vectors, class D>
  void attend_columns(D d, int at, int slot, int n) {
    const int lanes = static_cast<int>(hn::Lanes(d)), columns = Vectors * lanes;
    const auto [lo_min, lo_max] = std::minmax_element(s_.lo() + at, s_.lo() + at + columns);
    const auto [hi_min, hi_max] = std::minmax_element(s_.hi() + at, s_.hi() + at + columns);
    if (*hi_max <= slot || *lo_min >= slot + n) return;  // a chunk's later keys
    HWY_ALIGN float rescale[kManyVectors * TileScratch::kMaxLanes];
    float* scores = s_.scores();
    products_.template score<Vectors>(d, n, at, scores);
    if (const float softcap = t_.heads().softcap; softcap > 0) {
      const auto cap = hn::Set(d, softcap * kLog2E);
      for (int i = 0; i < n * columns; i += lanes)
        hn::Store(softcapped(d, hn::Load(d, scores + i), cap), d, scores + i);
    }
    if (*lo_max > slot || *hi_min < slot + n) hide<Vectors>(d, at, slot, n, scores);
    for (int v = 0; v < Vectors; ++v) {
      float *max = s_.max() + at + v * lanes, *sum = s_.sum() + at + v * lanes;
      auto best = hn::Load(d, scores + v * lanes);
      for (int k = 1; k < n; ++k) best = larger(best, hn::Load(d, scores + k * columns + v * lanes));
      OnlineSoftmax<D> softmax(d, hn::Load(d, max), best);
      products_.template weigh<Vectors>(d, softmax, n, v, scores);
      const auto factor = softmax.rescale();
      hn::Store(factor, d, rescale + v * lanes);
      hn::Store(softmax.max(), d, max);
      hn::Store(hn::MulAdd(hn::Load(d, sum), factor, softmax.total()), d, sum);
    }
    for (int i = 0; i < t_.head_dim(); i += kMany) {
      products_.template add_values<Vectors>(d, n, i, scores, rescale, s_.acc() + std::ptrdiff_t{i} * stride_ + at);
    }
  }

  /// Scores of slots that a column doesn't see become -inf.
  template <int Vectors, class D>
  HWY_INLINE void hide(D d, int at, int slot, int n, float* scores) const {
    const hn::RebindToSigned<D> di;
    const int lanes = static_cast<int>(hn::Lanes(d));
    const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (int v = 0; v < Vectors; ++v) {
      const auto lo = hn::Load(di, s_.lo() + at + v * lanes), hi = hn::Load(di, s_.hi() + at + v * lanes);
      for (int k = 0; k < n; ++k) {
        const auto at_slot = hn::Set(di, slot + k);
        const auto visible = hn::RebindMask(d, hn::AndNot(hn::Lt(at_slot, lo), hn::Lt(at_slot, hi)));
        float* score = scores + (k * Vectors + v) * lanes;
        hn::Store(hn::IfThenElse(visible, hn::Load(d, score), none), d, score);
      }
    }
  }

  const TileView& t_;
  TileScratch& s_;
  int stride_;  ///< queries, padded to whole vectors
  Products products_;
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_MANY_INL
