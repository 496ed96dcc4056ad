// Tiles of few queries (tile_kernel.cpp): vectors run along the head's values. Each key is loaded once for up to four
// queries, and converted, or multiplied as it is where it is a code; the pool is read block by block, all heads, in the
// order in which it lies in memory. What bounds it: docs/decisions.md, "The tree kernel on CPUs". Included once for
// each instruction set.

// clang-format off
#if defined(COPPICE_FEW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_FEW_INL
#undef COPPICE_FEW_INL
#else
#define COPPICE_FEW_INL
#endif
// clang-format on

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/cpu/few_codes-inl.h"
#include "attention/cpu/few_float-inl.h"
#include "attention/cpu/softmax-inl.h"
#include "attention/cpu/tile.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Scores of one query become weights; its partial state is rescaled to the new maximum. Slots outside [lo, hi) weigh
/// nothing.
template <class Load>
HWY_INLINE void few_softmax(const FewBlock<Load>& b, int q, int lo, int hi) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float* scores = b.scores + q * b.stride;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const int first = b.begin / lanes * lanes, end = (b.end + lanes - 1) / lanes * lanes;
  for (int s = first; s < lo; ++s) scores[s] = kNone;
  for (int s = hi; s < end; ++s) scores[s] = kNone;
  auto best = hn::Set(d, kNone);
  for (int s = first; s < end; s += lanes) best = larger(best, hn::Load(d, scores + s));
  const auto old_max = hn::Set(d, b.max[q]);
  const bool grows = !hn::AllTrue(d, hn::Le(best, old_max));
  if (grows) best = hn::MaxOfLanes(d, best);
  OnlineSoftmax<decltype(d)> softmax(d, old_max, grows ? best : old_max);
  for (int s = first; s < end; s += lanes) hn::Store(softmax.weight(hn::Load(d, scores + s)), d, scores + s);
  const float total = hn::GetLane(hn::SumOfLanes(d, softmax.total()));
  if (!grows) {
    b.sum[q] += total;
    return;
  }
  const auto rescale = softmax.rescale();
  b.sum[q] = b.sum[q] * hn::GetLane(rescale) + total;
  b.max[q] = hn::GetLane(softmax.max());
  for (int i = 0; i < b.head_dim; i += lanes) {
    hn::Store(hn::Mul(hn::Load(d, b.acc + q * b.head_dim + i), rescale), d, b.acc + q * b.head_dim + i);
  }
}

/// Scores of a block's slots become capped ones.
template <class Load, int Group>
HWY_INLINE void few_softcap(const FewBlock<Load>& b, float softcap) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto cap = hn::Set(d, softcap * kLog2E);
  for (int q = 0; q < Group; ++q) {
    for (int s = b.begin / lanes * lanes; s < b.end; s += lanes) {
      float* scores = b.scores + q * b.stride + s;
      hn::Store(softcapped(d, hn::Load(d, scores), cap), d, scores);
    }
  }
}

/// A function that is inlined, and no lambda, which a compiler may call twice instead: 1 % of a step.
template <class Load, int Group>
HWY_INLINE void few_softmax_of_group(const FewBlock<Load>& b, const TileView& t, int first_query, int slot0) {
  for (int q = 0; q < Group; ++q) {
    const RowInterval& row = t.interval(first_query + q);
    few_softmax(b, q, std::clamp(row.lo - slot0, b.begin, b.end), std::clamp(row.hi - slot0, b.begin, b.end));
  }
}

/// A block for a group of queries. The block is a copy: nothing that is stored can change it, so its fields stay in
/// registers.
template <class Load, int Group>
void few_group(const FewBlock<Load> b, const TileView& t, int first_query, int slot0) {
  if constexpr (kScaled<Load>) {
    const CodeScales keys(b.keys, b.row_bytes, b.begin, b.end), values(b.values, b.row_bytes, b.begin, b.end);
    code_scores<Load, Group>(b);
    code_scale<Load, Group>(b, keys);
    if (t.heads().softcap > 0) few_softcap<Load, Group>(b, t.heads().softcap);
    few_softmax_of_group<Load, Group>(b, t, first_query, slot0);
    code_values<Load, Group>(b, values);
  } else {
    few_scores<Load, Group>(b);
    if (t.heads().softcap > 0) few_softcap<Load, Group>(b, t.heads().softcap);
    few_softmax_of_group<Load, Group>(b, t, first_query, slot0);
    few_values<Load, Group>(b);
  }
}

/// States of all heads: [n_kv_head][n_queries], acc [head_dim] each.
template <class Load>
class FewTile {
 public:
  FewTile(const TileView& tile, TileScratch& scratch)
      : t_(tile),
        s_(scratch),
        ahead_(tile.bytes_of_head() * static_cast<std::size_t>(tile.block_size()) < kFarEnough ? 3 : 1),
        stride_((tile.block_size() + TileScratch::kMaxLanes - 1) / TileScratch::kMaxLanes * TileScratch::kMaxLanes) {}

  int heads_at_once() const { return t_.n_kv_head(); }
  int passes() const { return (t_.n_queries() + kMostGroup - 1) / kMostGroup; }
  int slots_at_once(int slot) const { return t_.left_in_block(slot); }
  void begin_heads(int /*kv_head*/, int /*n*/) {}
  void begin_slots(int slot) { block_ = t_.block_of(slot), place_ = t_.place_of(slot); }

  void set_queries(int kv_head, int /*i*/) {
    const int dim = t_.head_dim();
    for (int q = 0; q < t_.n_queries(); ++q) {
      const std::ptrdiff_t partial = state_of(kv_head, q);
      float* query = s_.queries() + partial * dim;
      take_query<Load>(t_.query(kv_head, q), t_.heads().scale * kLog2E, dim, query);
      if constexpr (kScaled<Load>) s_.units()[partial] = whole_query(query, dim, s_.whole_queries() + partial * dim);
      std::fill_n(s_.acc() + partial * dim, dim, 0.0F);
      s_.max()[partial] = -std::numeric_limits<float>::infinity();
      s_.sum()[partial] = 0.0F;
    }
  }

  void attend(int kv_head, int /*i*/, int slot, int n) {
    for (int q = 0; q < t_.n_queries();) {
      switch (std::min(kMostGroup, t_.n_queries() - q)) {
        case 1:
          attend_group<1>(kv_head, q, slot, n), q += 1;
          break;
        case 2:
          attend_group<2>(kv_head, q, slot, n), q += 2;
          break;
        case 3:
          attend_group<3>(kv_head, q, slot, n), q += 3;
          break;
        default:
          attend_group<4>(kv_head, q, slot, n), q += 4;
      }
    }
  }

  void store_states(int kv_head, int /*i*/) const {
    const int dim = t_.head_dim();
    for (int q = 0; q < t_.n_queries(); ++q) {
      const std::ptrdiff_t partial = state_of(kv_head, q);
      float* to = t_.state(kv_head, q);
      const float* acc = s_.acc() + partial * dim;
      if constexpr (kScaled<Load>) {
        put_in_order(acc, dim, to);
      } else {
        std::copy_n(acc, dim, to);
      }
      to[dim] = s_.max()[partial] * kLn2;
      to[dim + 1] = s_.sum()[partial];
    }
  }

 private:
  static constexpr int kMostGroup = 4;
  static constexpr std::size_t kFarEnough = 8192;

  std::ptrdiff_t state_of(int kv_head, int query) const { return std::ptrdiff_t{kv_head} * t_.n_queries() + query; }

  template <int Group>
  HWY_INLINE void attend_group(int kv_head, int query, int slot, int n) {
    const int dim = t_.head_dim(), keys = 2 * (block_ * t_.n_kv_head() + kv_head);
    const std::ptrdiff_t partial = state_of(kv_head, query);
    const FewQuery<Load>* queries = nullptr;
    if constexpr (kScaled<Load>) {
      queries = s_.whole_queries() + partial * dim;
    } else {
      queries = s_.queries() + partial * dim;
    }
    const FewBlock<Load> b{.keys = t_.keys(block_, kv_head),
                           .values = t_.values(block_, kv_head),
                           .ahead_of_keys = query == 0 ? stretch(keys + ahead_) : nullptr,
                           .ahead_of_values = query == 0 ? stretch(keys + 1 + ahead_) : nullptr,
                           .row_bytes = t_.row_bytes(),
                           .head_dim = dim,
                           .begin = place_,
                           .end = place_ + n,
                           .queries = queries,
                           .units = s_.units() + partial,
                           .acc = s_.acc() + partial * dim,
                           .max = s_.max() + partial,
                           .sum = s_.sum() + partial,
                           .scores = s_.scores(),
                           .stride = stride_};
    few_group<Load, Group>(b, t_, query, slot - place_);
  }

  /// A tile's keys and values in the order in which they are gone through: of each block, of each head, keys, then
  /// values.
  const std::byte* stretch(int i) const {
    const int block = i / 2 / t_.n_kv_head(), kv_head = i / 2 % t_.n_kv_head();
    return i % 2 == 0 ? t_.keys(block, kv_head) : t_.values(block, kv_head);
  }

  const TileView& t_;
  TileScratch& s_;
  /// Stretches from what is multiplied to what is fetched meanwhile. An odd number, so that keys are fetched while
  /// values are multiplied; and no more than it takes to arrive (docs/decisions.md, "The tree kernel on CPUs").
  int ahead_;
  int stride_;
  int block_ = 0, place_ = 0;  ///< of the slots at hand
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_FEW_INL
