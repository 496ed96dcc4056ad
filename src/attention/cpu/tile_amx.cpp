// A tile of many queries with AMX, which multiplies bf16 and adds up f32. Each number is the sum of two bf16, so a product is
//   high * high + high * low + low * high + low * low
// whose last term is left out: 2^-16 of the whole. An f16 is such a sum exactly; a code of int8 or turbo4 is one bf16.
// Scores are keys x queries, so that softmax runs along vectors of queries; weighted values are weights x values. Blocks are
// gone through in stretches of AmxScratch::kStretch slots, whose keys and values are converted for all queries, and for
// up to three columns of 16 queries at a time: AMX, vectors, AMX. Figures: ADR 0015.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "attention/cpu/ahead.h"
#include "attention/cpu/amx_scratch.h"
#include "attention/cpu/tile_loops.h"

#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile_amx.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include <hwy/highway.h>

#include "attention/cpu/amx_parts-inl.h"

#if HWY_TARGET == HWY_AVX3_DL && defined(__clang__)

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

constexpr int kColumn = AmxScratch::kColumn, kStretch = AmxScratch::kStretch;
constexpr std::size_t kMostAhead = 512 * 1024;

/// A tile of many queries on its key heads.
template <class Load>
class AmxTile {
 public:
  AmxTile(const TileInput& tile, AmxScratch& scratch)
      : t_(tile),
        s_(scratch),
        dim_(tile.heads.head_dim),
        n_queries_(static_cast<int>(tile.rows.size()) * tile.heads.heads_per_kv()),
        columns_((n_queries_ + kColumn - 1) / kColumn),
        head_bytes_(head_bytes(Load::kFormat, dim_)) {}

  /// Returns the bytes of keys and values loaded.
  std::uint64_t run();

 private:
  void set_queries(int kv_head, int first_column);
  void set_column(int column);
  void set_keys(int kv_head, int first, int n);
  void set_values(int kv_head, int first, int n);
  void attend(int first_column, int first, int n, Ahead& ahead, int lines);
  void find(const std::byte* pool, int first, int n, const std::byte** rows) const;
  template <int N>
  void attend_columns(int first_column, const int* which, int first, int n, Ahead& ahead, int lines);
  template <int N>
  void multiply_keys(const int* columns, int n);
  template <int N>
  void multiply_values(int n);
  void take_scores(int place, int column, int interval, int first, int n);
  template <bool Whole>
  void weigh(int place, int column, int step, int n, Ahead& ahead, int lines);
  void take_values(int place, int column);
  void store_states(int kv_head, int first_column) const;

  const TileInput& t_;
  AmxScratch& s_;
  int dim_, n_queries_, columns_;
  std::size_t head_bytes_;
  alignas(64) float from_[AmxScratch::kTogether][kColumn];     ///< of a column: what is taken from its scores,
  alignas(64) float rescale_[AmxScratch::kTogether][kColumn];  ///< and what its states are scaled by
};

template <class Load>
std::uint64_t AmxTile<Load>::run() {
  const HeadShape& h = t_.heads;
  for (int q = 0; q < columns_ * kColumn; ++q) {  // padding sees what the last query sees
    const RowInterval& row = t_.rows[static_cast<std::size_t>(std::min(q, n_queries_ - 1) / h.heads_per_kv())];
    s_.lo(0)[q] = row.lo;
    s_.hi(0)[q] = row.hi;
  }
  const int all = columns_ * kColumn, last = t_.run_offset + static_cast<int>(t_.blocks.size()) * t_.pool.block_size;
  const int begin = std::max(*std::min_element(s_.lo(0), s_.lo(0) + all), t_.run_offset);
  const int end = std::min(*std::max_element(s_.hi(0), s_.hi(0) + all), last);
  // Heads whose states fit the scratch memory, and whose next keys and values fit L2 beside those at hand.
  const int fetched = static_cast<int>(kMostAhead / (2 * head_bytes_ * kStretch));
  const int together = std::clamp(std::min(AmxScratch::kMaxColumns / columns_, fetched), 1, h.n_kv_head);
  const simd::HWY_NAMESPACE::WholeTiles tiles;
  for (int head = 0; head < h.n_kv_head; head += together) {
    const int heads = std::min(together, h.n_kv_head - head);
    const auto ahead_of = [&](int slot) HWY_ATTR {
      return Ahead(t_, head_bytes_ * static_cast<std::size_t>(head), head_bytes_ * static_cast<std::size_t>(heads),
                   slot, std::clamp(end - slot, 0, kStretch));
    };
    Ahead first = ahead_of(begin);
    first.fetch(first.lines());
    for (int i = 0; i < heads; ++i) set_queries(head + i, i * columns_);
    for (int slot = begin; slot < end; slot += kStretch) {
      const int n = std::min(kStretch, end - slot);
      Ahead ahead = ahead_of(slot + kStretch);
      const int times = heads * columns_ * (kStretch / 2), lines = (ahead.lines() + times - 1) / times;
      for (int i = 0; i < heads; ++i) {
        set_keys(head + i, slot, n);
        set_values(head + i, slot, n);
        attend(i * columns_, slot, n, ahead, lines);
      }
    }
    for (int i = 0; i < heads; ++i) store_states(head + i, i * columns_);
  }
  return 2 * head_bytes_ * static_cast<std::uint64_t>(h.n_kv_head) *
         static_cast<std::uint64_t>(std::max(end - begin, 0));
}

template <class Load>
void AmxTile<Load>::set_queries(int kv_head, int first_column) {
  const HeadShape& h = t_.heads;
  const int per_kv = h.heads_per_kv();
  for (int column = 0; column < columns_; ++column) {
    for (int i = 0; i < kColumn; ++i) {
      const int q = column * kColumn + i;
      std::fill_n(s_.query(i), s_.padded(), 0.0F);
      if (q >= n_queries_) continue;
      const std::int32_t row = t_.rows[static_cast<std::size_t>(q / per_kv)].row;
      const float* from = t_.q + (std::ptrdiff_t{row} * h.n_head + kv_head * per_kv + q % per_kv) * h.head_dim;
      take_query<Load>(from, h.scale * kLog2E, dim_, s_.query(i));  // so that weights are powers of 2
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

/// Where slots [first, first + n), n <= 16, have what the pool's first slot has at `pool`; the last one again behind them.
template <class Load>
void AmxTile<Load>::find(const std::byte* pool, int first, int n, const std::byte** rows) const {
  const int size = t_.pool.block_size;
  int block = (first - t_.run_offset) / size, in_block = (first - t_.run_offset) % size;
  for (int i = 0; i < n; ++block, in_block = 0) {
    const std::byte* row =
        pool + t_.pool.block_bytes() * static_cast<std::size_t>(t_.blocks[static_cast<std::size_t>(block)]) +
        t_.pool.row_bytes * static_cast<std::size_t>(in_block);
    for (; in_block < size && i < n; ++in_block, ++i, row += t_.pool.row_bytes) rows[i] = row;
  }
  for (int i = n; i < 16; ++i) rows[i] = rows[n - 1];
}

template <class Load>
void AmxTile<Load>::set_keys(int kv_head, int first, int n) {
  const std::byte* rows[kTileRows];
  for (int k = 0; k < n; k += kTileRows) {
    find(t_.pool.keys + head_bytes_ * static_cast<std::size_t>(kv_head), first + k, std::min(kTileRows, n - k), rows);
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
    find(t_.pool.values + head_bytes_ * static_cast<std::size_t>(kv_head), first + k, std::min(kTileRows, n - k), rows);
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

/// A column's scores are there: hides what it doesn't see, finds the largest ones, and scales what was summed up so far.
template <class Load>
HWY_INLINE void AmxTile<Load>::take_scores(int place, int column, int interval, int first, int n) {
  const __m512i lo = _mm512_load_si512(s_.lo(interval)), hi = _mm512_load_si512(s_.hi(interval));
  const __m512 none = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  const bool masked = _mm512_reduce_max_epi32(lo) > first || _mm512_reduce_min_epi32(hi) < first + n;
  float* score = s_.scores(place);
  const float* scales = s_.key_scales();
  __m512 best = none;
  if (masked || kScaled<Load>) {
    for (int k = 0; k < n; ++k, score += kColumn) {
      __m512 x = _mm512_load_ps(score);
      if constexpr (kScaled<Load>) x = _mm512_mul_ps(x, _mm512_set1_ps(scales[k]));
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
  const __m512 old_max = _mm512_load_ps(s_.max(column)), max = _mm512_max_ps(old_max, best);
  // A query that has seen nothing yet has -inf, and -inf minus that would be no number.
  const __m512 from = _mm512_max_ps(max, _mm512_set1_ps(std::numeric_limits<float>::lowest()));
  const __m512 rescale = exp2_amx(_mm512_sub_ps(old_max, from));
  _mm512_store_ps(from_[place], from);
  _mm512_store_ps(rescale_[place], rescale);
  _mm512_store_ps(s_.max(column), max);
  _mm512_store_ps(s_.sum(column), _mm512_mul_ps(_mm512_load_ps(s_.sum(column)), rescale));
}

/// Scores of 32 slots, those below n, become weights.
template <class Load>
template <bool Whole>
HWY_INLINE void AmxTile<Load>::weigh(int place, int column, int step, int n, Ahead& ahead, int lines) {
  const __m512 from = _mm512_load_ps(from_[place]);
  const float *score = s_.scores(place) + step * kStep * kColumn, *scales = s_.value_scales() + step * kStep;
  const int left = n - step * kStep;
  __m512 total = _mm512_load_ps(s_.sum(column));
  const auto weight = [&](int k) HWY_ATTR {
    if (!Whole && k >= left) return _mm512_setzero_ps();
    const __m512 p = exp2_amx(_mm512_sub_ps(_mm512_load_ps(score + k * kColumn), from));
    total = _mm512_add_ps(total, p);
    return kScaled<Load> ? _mm512_mul_ps(p, _mm512_set1_ps(scales[k])) : p;
  };
  __m512i high[kTileRows], low[kTileRows];
  for (int r = 0; r < kTileRows; ++r) {
    ahead.fetch(lines);
    const __m512 even = weight(2 * r), odd = weight(2 * r + 1);
    const Parts parts(even, odd);
    high[r] = parts.high;
    low[r] = parts.low;
  }
  _mm512_store_ps(s_.sum(column), total);
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

/// One head's columns on slots [first, first + n), whose keys and values are set.
template <class Load>
void AmxTile<Load>::attend(int first_column, int first, int n, Ahead& ahead, int lines) {
  int visible[AmxScratch::kMaxColumns], count = 0;  // of a chunk's rows, some stand before these slots
  for (int i = 0; i < columns_; ++i) {
    const int lo = *std::min_element(s_.lo(i), s_.lo(i) + kColumn),
              hi = *std::max_element(s_.hi(i), s_.hi(i) + kColumn);
    if (hi > first && lo < first + n) visible[count++] = i;
  }
  for (int i = 0; i < count; i += AmxScratch::kTogether) {
    switch (std::min(AmxScratch::kTogether, count - i)) {
      case 1:
        attend_columns<1>(first_column, visible + i, first, n, ahead, lines);
        break;
      case 2:
        attend_columns<2>(first_column, visible + i, first, n, ahead, lines);
        break;
      default:
        attend_columns<3>(first_column, visible + i, first, n, ahead, lines);
    }
  }
}

/// N columns of a head. `which`: they count from the head's first one.
template <class Load>
template <int N>
void AmxTile<Load>::attend_columns(int first_column, const int* which, int first, int n, Ahead& ahead, int lines) {
  int columns[N];
  for (int i = 0; i < N; ++i) columns[i] = first_column + which[i];
  multiply_keys<N>(columns, n);
  for (int i = 0; i < N; ++i) {
    take_scores(i, columns[i], which[i], first, n);
    int step = 0;
    for (; (step + 1) * kStep <= n; ++step) weigh<true>(i, columns[i], step, n, ahead, lines);
    if (step * kStep < n) weigh<false>(i, columns[i], step, n, ahead, lines);
  }
  multiply_values<N>(n);
  for (int i = 0; i < N; ++i) take_values(i, columns[i]);
}

template <class Load>
void AmxTile<Load>::store_states(int kv_head, int first_column) const {
  constexpr float kLn2 = 0.693147181F;
  const int per_kv = t_.heads.heads_per_kv();
  for (int q = 0; q < n_queries_; ++q) {
    const float* acc = s_.acc(first_column) + std::ptrdiff_t{q} * s_.padded();
    float* to = t_.states + (std::ptrdiff_t{q / per_kv} * t_.heads.n_head + kv_head * per_kv + q % per_kv) * (dim_ + 2);
    std::copy_n(acc, dim_, to);
    to[dim_] = s_.max(first_column)[q] * kLn2;
    to[dim_ + 1] = s_.sum(first_column)[q];
  }
}

std::uint64_t amx_of_format(const TileInput& tile, AmxScratch& scratch) {
  return with_loader(tile.pool.format,
                     [&](auto load) HWY_ATTR { return AmxTile<decltype(load)>(tile, scratch).run(); });
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET == HWY_AVX3_DL && defined(__clang__)

#if HWY_ONCE
namespace coppice::attention {

std::uint64_t attend_amx([[maybe_unused]] const TileInput& tile, [[maybe_unused]] AmxScratch& scratch) {
#if (HWY_TARGETS & HWY_AVX3_DL) != 0 && defined(__clang__)
  return N_AVX3_DL::amx_of_format(tile, scratch);
#else
  std::abort();  // never called: simd::amx()
#endif
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
