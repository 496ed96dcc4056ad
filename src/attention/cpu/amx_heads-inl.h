// What both kinds of tiles with AMX share (amx-inl.h, amx_few-inl.h): queries and keys as parts, and what is fetched
// ahead. AMX multiplies bf16 and adds up f32. Each number is the sum of two bf16, so a product is
//   high * high + high * low + low * high + low * low
// whose last term is left out: 2^-16 of the whole. An f16 is such a sum exactly; a code of int8 or turbo4 is one bf16.
// Scores are keys x queries, so that softmax runs along vectors of queries. Slots are gone through in stretches of
// AmxScratch::kStretch, whose keys and values are converted for all queries. Figures: docs/decisions.md, "AMX tiles".
// Included once for each instruction set.

// clang-format off
#if defined(COPPICE_AMX_HEADS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_AMX_HEADS_INL
#undef COPPICE_AMX_HEADS_INL
#else
#define COPPICE_AMX_HEADS_INL
#endif
// clang-format on

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "attention/cpu/ahead.h"
#include "attention/cpu/amx_parts-inl.h"
#include "attention/cpu/amx_scratch.h"
#include "attention/cpu/softmax-inl.h"
#include "attention/cpu/tile.h"
#include "simd/kernel-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

constexpr int kColumn = AmxScratch::kColumn, kStretch = AmxScratch::kStretch;
constexpr std::size_t kMostAhead = 512 * 1024;

using AmxLanes = hn::ScalableTag<float>;

/// States of some heads at a time, each of columns_ columns. REQUIRES: WholeTiles live.
template <class Load>
class AmxHeads {
 public:
  AmxHeads(const TileView& tile, AmxScratch& scratch)
      : t_(tile),
        s_(scratch),
        dim_(tile.head_dim()),
        n_queries_(tile.n_queries()),
        columns_((n_queries_ + kColumn - 1) / kColumn) {
    for (int q = 0; q < columns_ * kColumn; ++q) {  // padding sees what the last query sees
      const RowInterval& row = t_.interval(std::min(q, n_queries_ - 1));
      s_.lo(0)[q] = row.lo;
      s_.hi(0)[q] = row.hi;
    }
    for (int i = 0; i < columns_; ++i) {
      const auto [from_some, from_all] = std::minmax_element(s_.lo(i), s_.lo(i) + kColumn);
      const auto [to_all, to_some] = std::minmax_element(s_.hi(i), s_.hi(i) + kColumn);
      seen_[i] = {*from_some, *to_some, *from_all, *to_all};
    }
  }

  /// Heads whose states fit the scratch memory, and whose next keys and values fit L2 beside those at hand.
  int heads_at_once() const {
    const int fetched = static_cast<int>(kMostAhead / (2 * t_.bytes_of_head() * kStretch));
    return std::clamp(std::min(AmxScratch::kMaxColumns / columns_, fetched), 1, t_.n_kv_head());
  }
  int passes() const { return 1; }
  int slots_at_once(int slot) const { return std::min(kStretch, t_.end() - slot); }
  void begin_heads(int kv_head, int n);
  void begin_slots(int slot);
  void set_queries(int kv_head, int i);

 protected:
  void fetch_from(int slot);
  void set_column(int column);
  void set_keys(int kv_head, int first, int n);
  template <int Slots, class At>
  void find(At&& at, int first, int n, const std::byte** rows) const;
  int find_visible(int first, int n, int* visible) const;
  __m512 hide_and_find_largest(float* score, int interval, int first, int n) const;

  const TileView& t_;
  AmxScratch& s_;
  int dim_, n_queries_, columns_;
  int first_head_ = 0, n_heads_ = 0;  ///< of those that are gone through together
  std::optional<Ahead> ahead_;
  int lines_ = 0;  ///< fetched at a time
  /// Slots that some, and that all, queries of a head's column see.
  struct Seen {
    int from_some, to_some, from_all, to_all;
  };
  Seen seen_[AmxScratch::kMaxColumns];
};

template <class Load>
void AmxHeads<Load>::fetch_from(int slot) {
  ahead_.emplace(t_, first_head_, t_.bytes_of_head() * static_cast<std::size_t>(n_heads_), slot,
                 std::clamp(t_.end() - slot, 0, kStretch));
}

template <class Load>
void AmxHeads<Load>::begin_heads(int kv_head, int n) {
  first_head_ = kv_head;
  n_heads_ = n;
  fetch_from(t_.begin());
  ahead_->fetch(ahead_->lines());
}

template <class Load>
void AmxHeads<Load>::begin_slots(int slot) {
  fetch_from(slot + kStretch);
  const int times = n_heads_ * columns_ * (kStretch / 2);
  lines_ = (ahead_->lines() + times - 1) / times;
}

template <class Load>
void AmxHeads<Load>::set_queries(int kv_head, int i) {
  const int first_column = i * columns_;
  for (int column = 0; column < columns_; ++column) {
    for (int row = 0; row < kColumn; ++row) {
      const int q = column * kColumn + row;
      std::fill_n(s_.query(row), s_.padded(), 0.0F);
      if (q >= n_queries_) continue;
      take_query<Load>(t_.query(kv_head, q), t_.heads().scale * kLog2E, dim_, s_.query(row));
    }
    set_column(first_column + column);
  }
  std::fill_n(s_.acc(first_column), std::ptrdiff_t{columns_} * kColumn * s_.padded(), 0.0F);
  std::fill_n(s_.max(first_column), columns_ * kColumn, -std::numeric_limits<float>::infinity());
  std::fill_n(s_.sum(first_column), columns_ * kColumn, 0.0F);
}

/// Sixteen queries become parts, as AMX tiles.
template <class Load>
void AmxHeads<Load>::set_column(int column) {
  for (int step = 0; step < s_.steps(); ++step) {
    __m512i high[kColumn], low[kColumn];
    for (int i = 0; i < kColumn; ++i) {
      const float* from = s_.query(i) + step * kStep;
      const Parts parts(_mm512_load_ps(from), _mm512_load_ps(from + 16));
      high[i] = parts.high;
      low[i] = parts.low;
    }
    store_transposed<true>(high, low, s_.queries(column, step));
  }
}

/// Where a head's keys or values of slots [first, first + n), n <= Slots, lie; the last one again behind them.
/// at(block): those of a block's first slot.
template <class Load>
template <int Slots, class At>
void AmxHeads<Load>::find(At&& at, int first, int n, const std::byte** rows) const {
  int block = t_.block_of(first), in_block = t_.place_of(first);
  for (int i = 0; i < n; ++block, in_block = 0) {
    const std::byte* row = at(block) + t_.row_bytes() * static_cast<std::size_t>(in_block);
    for (; in_block < t_.block_size() && i < n; ++in_block, ++i, row += t_.row_bytes()) rows[i] = row;
  }
  for (int i = n; i < Slots; ++i) rows[i] = rows[n - 1];
}

template <class Load>
void AmxHeads<Load>::set_keys(int kv_head, int first, int n) {
  const std::byte* rows[kTileRows];
  for (int k = 0; k < n; k += kTileRows) {
    find<kTileRows>([&](int block) { return t_.keys(block, kv_head); }, first + k, std::min(kTileRows, n - k), rows);
    if constexpr (kScaled<Load>) {
      for (int i = 0; i < kTileRows; ++i) s_.key_scales()[k + i] = finite_scale_of(rows[i]);
    }
    for (int at = 0; at < dim_; at += kStep) {
      std::uint16_t* to = s_.keys(k / kTileRows, at / kStep);
      const bool half = at + 16 >= dim_;
      for (int i = 0; i < kTileRows; ++i) {
        store_loaded<Load>(load_16<Load>(rows[i], at), half ? _mm512_setzero_ps() : load_16<Load>(rows[i], at + 16), to,
                           i);
      }
    }
  }
}

/// Columns that see some of these slots: of a chunk's rows, some stand before them.
template <class Load>
int AmxHeads<Load>::find_visible(int first, int n, int* visible) const {
  int count = 0;
  for (int i = 0; i < columns_; ++i) {
    if (seen_[i].to_some > first && seen_[i].from_some < first + n) visible[count++] = i;
  }
  return count;
}

/// Scores of a column's queries, slot by slot, and `interval`, the column's place in its head: gives them their scales,
/// hides what a query doesn't see, and returns the largest ones.
template <class Load>
HWY_INLINE __m512 AmxHeads<Load>::hide_and_find_largest(float* score, int interval, int first, int n) const {
  using F = AmxLanes;
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const Seen& seen = seen_[interval];
  const float softcap = t_.heads().softcap;
  __m512 best = none;
  if (seen.from_all > first || seen.to_all < first + n || kScaled<Load> || softcap > 0) {
    const __m512i lo = _mm512_load_si512(s_.lo(interval)), hi = _mm512_load_si512(s_.hi(interval));
    const auto cap = hn::Set(F(), softcap * kLog2E);
    const float* scales = s_.key_scales();
    for (int k = 0; k < n; ++k, score += kColumn) {
      __m512 x = _mm512_load_ps(score);
      if constexpr (kScaled<Load>) x = _mm512_mul_ps(x, _mm512_set1_ps(scales[k]));
      if (softcap > 0) x = softcapped(F(), hn::Vec<F>{x}, cap).raw;
      const __m512i slot = _mm512_set1_epi32(first + k);
      x = _mm512_mask_mov_ps(none, _mm512_cmple_epi32_mask(lo, slot) & _mm512_cmplt_epi32_mask(slot, hi), x);
      _mm512_store_ps(score, x);
      best = _mm512_max_ps(best, x);
    }
    return best;
  }
  __m512 second = none, third = none, fourth = none;  // one chain of so many would take as long as the weights
  int k = 0;
  for (; k + 4 <= n; k += 4, score += 4 * kColumn) {
    best = _mm512_max_ps(best, _mm512_load_ps(score));
    second = _mm512_max_ps(second, _mm512_load_ps(score + kColumn));
    third = _mm512_max_ps(third, _mm512_load_ps(score + 2 * kColumn));
    fourth = _mm512_max_ps(fourth, _mm512_load_ps(score + 3 * kColumn));
  }
  for (; k < n; ++k, score += kColumn) best = _mm512_max_ps(best, _mm512_load_ps(score));
  return _mm512_max_ps(_mm512_max_ps(best, second), _mm512_max_ps(third, fourth));
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#endif  // COPPICE_AMX_HEADS_INL
