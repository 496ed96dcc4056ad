// Tiles of many queries with AMX, which multiplies bf16 and adds up f32. Each number is the sum of two bf16, so a
// product is
//   high * high + high * low + low * high + low * low
// whose last term is left out: 2^-16 of the whole. An f16 is such a sum exactly; a code of int8 or turbo4 is one bf16.
// Scores are keys x queries, so that softmax runs along vectors of queries; weighted values are weights x values. Slots
// are gone through in stretches of AmxScratch::kStretch, whose keys and values are converted for all queries, and for
// up to three columns of 16 queries at a time: AMX, vectors, AMX. Figures: docs/decisions.md, "AMX tiles". Included
// once for each instruction set.

// clang-format off
#if defined(COPPICE_AMX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_AMX_INL
#undef COPPICE_AMX_INL
#else
#define COPPICE_AMX_INL
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

/// States of some heads at a time, each of columns_ columns. REQUIRES: WholeTiles live.
template <class Load>
class AmxTile {
 public:
  AmxTile(const TileView& tile, AmxScratch& scratch)
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
  void attend(int kv_head, int i, int slot, int n);
  void store_states(int kv_head, int i) const;

 private:
  using F = hn::ScalableTag<float>;

  void fetch_from(int slot);
  void set_column(int column);
  void set_keys(int kv_head, int first, int n);
  void set_values(int kv_head, int first, int n);
  template <class At>
  void find(At&& at, int first, int n, const std::byte** rows) const;
  template <int N>
  void attend_columns(int first_column, const int* which, int first, int n);
  template <int N>
  void multiply_keys(const int* columns, int n);
  template <int N>
  void multiply_values(int n);
  OnlineSoftmax<F> take_scores(int place, int column, int interval, int first, int n);
  template <bool Whole>
  void weigh(OnlineSoftmax<F>& softmax, int place, int step, int n);
  void take_values(int place, int column);

  const TileView& t_;
  AmxScratch& s_;
  int dim_, n_queries_, columns_;
  int first_head_ = 0, n_heads_ = 0;  ///< of those that are gone through together
  std::optional<Ahead> ahead_;
  int lines_ = 0;                                              ///< fetched at a time
  alignas(64) float rescale_[AmxScratch::kTogether][kColumn];  ///< what a column's states are scaled by
};

template <class Load>
void AmxTile<Load>::fetch_from(int slot) {
  ahead_.emplace(t_, first_head_, t_.bytes_of_head() * static_cast<std::size_t>(n_heads_), slot,
                 std::clamp(t_.end() - slot, 0, kStretch));
}

template <class Load>
void AmxTile<Load>::begin_heads(int kv_head, int n) {
  first_head_ = kv_head;
  n_heads_ = n;
  fetch_from(t_.begin());
  ahead_->fetch(ahead_->lines());
}

template <class Load>
void AmxTile<Load>::begin_slots(int slot) {
  fetch_from(slot + kStretch);
  const int times = n_heads_ * columns_ * (kStretch / 2);
  lines_ = (ahead_->lines() + times - 1) / times;
}

template <class Load>
void AmxTile<Load>::set_queries(int kv_head, int i) {
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
void AmxTile<Load>::set_column(int column) {
  for (int step = 0; step < s_.steps(); ++step) {
    __m512i high[kColumn], low[kColumn];
    for (int i = 0; i < kColumn; ++i) {
      const float* from = s_.query(i) + step * kStep;
      const Parts parts(_mm512_load_ps(from), _mm512_load_ps(from + 16));
      high[i] = parts.high;
      low[i] = parts.low;
    }
    simd::HWY_NAMESPACE::transpose(high);
    simd::HWY_NAMESPACE::transpose(low);
    std::uint16_t* to = s_.queries(column, step);
    for (int i = 0; i < kTileRows; ++i) {
      _mm512_store_si512(to + i * kStep, high[i]);
      _mm512_store_si512(to + kTileSize + i * kStep, low[i]);
    }
  }
}

/// Where a head's keys or values of slots [first, first + n), n <= 16, lie; the last one again behind them. at(block):
/// those of a block's first slot.
template <class Load>
template <class At>
void AmxTile<Load>::find(At&& at, int first, int n, const std::byte** rows) const {
  int block = t_.block_of(first), in_block = t_.place_of(first);
  for (int i = 0; i < n; ++block, in_block = 0) {
    const std::byte* row = at(block) + t_.row_bytes() * static_cast<std::size_t>(in_block);
    for (; in_block < t_.block_size() && i < n; ++in_block, ++i, row += t_.row_bytes()) rows[i] = row;
  }
  for (int i = n; i < 16; ++i) rows[i] = rows[n - 1];
}

template <class Load>
void AmxTile<Load>::set_keys(int kv_head, int first, int n) {
  const std::byte* rows[kTileRows];
  for (int k = 0; k < n; k += kTileRows) {
    find([&](int block) { return t_.keys(block, kv_head); }, first + k, std::min(kTileRows, n - k), rows);
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

template <class Load>
void AmxTile<Load>::set_values(int kv_head, int first, int n) {
  const std::byte* rows[kTileRows];
  for (int k = 0; k < n; k += kTileRows) {
    find([&](int block) { return t_.values(block, kv_head); }, first + k, std::min(kTileRows, n - k), rows);
    if constexpr (kScaled<Load>) {
      for (int i = 0; i < kTileRows; ++i) s_.value_scales()[k + i] = finite_scale_of(rows[i]);
    }
    for (int at = 0; at < dim_; at += 16) {
      std::uint16_t* to = s_.values(k / kStep, at / 16);
      for (int i = 0; i < kTileRows; i += 2) {
        store_loaded<Load>(load_16<Load>(rows[i], at), load_16<Load>(rows[i + 1], at), to, (k % kStep + i) / 2);
      }
    }
  }
}

/// Scores of N columns.
template <class Load>
template <int N>
void AmxTile<Load>::multiply_keys(const int* columns, int n) {
  for (int tile = 0; tile * kTileRows < n; ++tile) {
    clear_tiles<N>();
    for (int step = 0; step < s_.steps(); ++step) {
      multiply_shared<N, false, !kScaled<Load>>(s_.keys(tile, step),
                                                [&](int i) HWY_ATTR { return s_.queries(columns[i], step); });
    }
    store_tiles<N>(s_.scores(0) + tile * kTileRows * kColumn, s_.scores(1) - s_.scores(0));
  }
}

/// Weighted values of N columns.
template <class Load>
template <int N>
void AmxTile<Load>::multiply_values(int n) {
  for (int tile = 0; tile * 16 < dim_; ++tile) {
    clear_tiles<N>();
    for (int step = 0; step * kStep < n; ++step) {
      multiply_shared<N, true, !kScaled<Load>>(s_.values(step, tile),
                                               [&](int i) HWY_ATTR { return s_.weights(i, step); });
    }
    store_tiles<N>(s_.sums(0) + tile * kTileRows * kColumn, s_.sums(1) - s_.sums(0));
  }
}

/// A column's scores are there: hides what it doesn't see, and finds the largest ones.
template <class Load>
HWY_INLINE OnlineSoftmax<hn::ScalableTag<float>> AmxTile<Load>::take_scores(int place, int column, int interval,
                                                                            int first, int n) {
  const __m512i lo = _mm512_load_si512(s_.lo(interval)), hi = _mm512_load_si512(s_.hi(interval));
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const bool masked = _mm512_reduce_max_epi32(lo) > first || _mm512_reduce_min_epi32(hi) < first + n;
  float* score = s_.scores(place);
  const float* scales = s_.key_scales();
  __m512 best = none;
  const float softcap = t_.heads().softcap;
  const auto cap = hn::Set(F(), softcap * kLog2E);
  if (masked || kScaled<Load> || softcap > 0) {
    for (int k = 0; k < n; ++k, score += kColumn) {
      __m512 x = _mm512_load_ps(score);
      if constexpr (kScaled<Load>) x = _mm512_mul_ps(x, _mm512_set1_ps(scales[k]));
      if (softcap > 0) x = softcapped(F(), hn::Vec<F>{x}, cap).raw;
      const __m512i slot = _mm512_set1_epi32(first + k);
      x = _mm512_mask_mov_ps(none, _mm512_cmple_epi32_mask(lo, slot) & _mm512_cmplt_epi32_mask(slot, hi), x);
      _mm512_store_ps(score, x);
      best = _mm512_max_ps(best, x);
    }
  } else {
    __m512 second = none, third = none, fourth = none;  // one chain of so many would take as long as the weights
    int k = 0;
    for (; k + 4 <= n; k += 4, score += 4 * kColumn) {
      best = _mm512_max_ps(best, _mm512_load_ps(score));
      second = _mm512_max_ps(second, _mm512_load_ps(score + kColumn));
      third = _mm512_max_ps(third, _mm512_load_ps(score + 2 * kColumn));
      fourth = _mm512_max_ps(fourth, _mm512_load_ps(score + 3 * kColumn));
    }
    for (; k < n; ++k, score += kColumn) best = _mm512_max_ps(best, _mm512_load_ps(score));
    best = _mm512_max_ps(_mm512_max_ps(best, second), _mm512_max_ps(third, fourth));
  }
  return {F(), hn::Load(F(), s_.max(column)), hn::Vec<F>{best}};
}

/// Scores of 32 slots, those below n, become weights.
template <class Load>
template <bool Whole>
HWY_INLINE void AmxTile<Load>::weigh(OnlineSoftmax<F>& softmax, int place, int step, int n) {
  const float *score = s_.scores(place) + step * kStep * kColumn, *scales = s_.value_scales() + step * kStep;
  const int left = n - step * kStep;
  const auto weight = [&](int k) HWY_ATTR {
    if (!Whole && k >= left) return _mm512_setzero_ps();
    const __m512 p = softmax.weight(hn::Load(F(), score + k * kColumn)).raw;
    return kScaled<Load> ? _mm512_mul_ps(p, _mm512_set1_ps(scales[k])) : p;
  };
  __m512i high[kTileRows], low[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    ahead_->fetch(lines_);
    const __m512 even = weight(2 * r), odd = weight(2 * r + 1);
    const Parts parts(even, odd);
    high[r] = parts.high;
    low[r] = parts.low;
  }
  simd::HWY_NAMESPACE::transpose(high);
  simd::HWY_NAMESPACE::transpose(low);
  std::uint16_t* to = s_.weights(place, step);
  for (int r = 0; r < kTileRows; ++r) {
    _mm512_store_si512(to + r * kStep, high[r]);
    _mm512_store_si512(to + kTileSize + r * kStep, low[r]);
  }
}

template <class Load>
HWY_INLINE void AmxTile<Load>::take_values(int place, int column) {
  const int tiles = dim_ / 16, padded = s_.padded();
  const float* sums = s_.sums(place);
  float* acc = s_.acc(column);
  for (int q = 0; q < kColumn; ++q, acc += padded, sums += 16) {
    const __m512 rescale = _mm512_set1_ps(rescale_[place][q]);
    for (int i = 0; i < tiles; ++i) {
      const __m512 x = _mm512_fmadd_ps(_mm512_load_ps(acc + i * 16), rescale, _mm512_load_ps(sums + i * 256));
      _mm512_store_ps(acc + i * 16, x);
    }
  }
}

template <class Load>
void AmxTile<Load>::attend(int kv_head, int index, int first, int n) {
  set_keys(kv_head, first, n);
  set_values(kv_head, first, n);
  const int first_column = index * columns_;
  int visible[AmxScratch::kMaxColumns], count = 0;  // of a chunk's rows, some stand before these slots
  for (int i = 0; i < columns_; ++i) {
    const int lo = *std::min_element(s_.lo(i), s_.lo(i) + kColumn),
              hi = *std::max_element(s_.hi(i), s_.hi(i) + kColumn);
    if (hi > first && lo < first + n) visible[count++] = i;
  }
  for (int i = 0; i < count; i += AmxScratch::kTogether) {
    switch (std::min(AmxScratch::kTogether, count - i)) {
      case 1:
        attend_columns<1>(first_column, visible + i, first, n);
        break;
      case 2:
        attend_columns<2>(first_column, visible + i, first, n);
        break;
      default:
        attend_columns<3>(first_column, visible + i, first, n);
    }
  }
}

/// N columns of a head. `which`: they count from the head's first one.
template <class Load>
template <int N>
void AmxTile<Load>::attend_columns(int first_column, const int* which, int first, int n) {
  int columns[N];
  for (int i = 0; i < N; ++i) columns[i] = first_column + which[i];
  multiply_keys<N>(columns, n);
  for (int i = 0; i < N; ++i) {
    OnlineSoftmax<F> softmax = take_scores(i, columns[i], which[i], first, n);
    int step = 0;
    for (; (step + 1) * kStep <= n; ++step) weigh<true>(softmax, i, step, n);
    if (step * kStep < n) weigh<false>(softmax, i, step, n);
    const auto rescale = softmax.rescale();
    hn::Store(rescale, F(), rescale_[i]);
    hn::Store(softmax.max(), F(), s_.max(columns[i]));
    hn::Store(hn::MulAdd(hn::Load(F(), s_.sum(columns[i])), rescale, softmax.total()), F(), s_.sum(columns[i]));
  }
  multiply_values<N>(n);
  for (int i = 0; i < N; ++i) take_values(i, columns[i]);
}

template <class Load>
void AmxTile<Load>::store_states(int kv_head, int i) const {
  const int first_column = i * columns_;
  for (int q = 0; q < n_queries_; ++q) {
    float* to = t_.state(kv_head, q);
    std::copy_n(s_.acc(first_column) + std::ptrdiff_t{q} * s_.padded(), dim_, to);
    to[dim_] = s_.max(first_column)[q] * kLn2;
    to[dim_ + 1] = s_.sum(first_column)[q];
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#endif  // COPPICE_AMX_INL
