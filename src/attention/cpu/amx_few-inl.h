// Tiles of up to three columns of 16 queries with AMX (amx_heads-inl.h): too few to make up for transposed values.
// Weighted values are weights x values: the weights are transposed. A stretch's slots are gone through for all columns
// at a time: AMX, vectors, AMX. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_AMX_FEW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_AMX_FEW_INL
#undef COPPICE_AMX_FEW_INL
#else
#define COPPICE_AMX_FEW_INL
#endif
// clang-format on

#include <algorithm>
#include <cstdint>

#include "attention/cpu/amx_heads-inl.h"
#include "simd/kernel-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

template <class Load>
class AmxFewTile : public AmxHeads<Load> {
 public:
  using AmxHeads<Load>::AmxHeads;

  void attend(int kv_head, int index, int first, int n);
  void store_states(int kv_head, int index) const;

 private:
  using Heads = AmxHeads<Load>;
  using F = AmxLanes;
  using Heads::t_, Heads::s_, Heads::dim_, Heads::n_queries_, Heads::columns_, Heads::ahead_, Heads::lines_;
  void set_values(int kv_head, int first, int n);
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

  alignas(64) float rescale_[AmxScratch::kFew][kColumn];  ///< what a column's states are scaled by
};

template <class Load>
void AmxFewTile<Load>::set_values(int kv_head, int first, int n) {
  const std::byte* rows[kTileRows];
  for (int k = 0; k < n; k += kTileRows) {
    this->template find<kTileRows>([&](int block) { return t_.values(block, kv_head); }, first + k,
                                   std::min(kTileRows, n - k), rows);
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
void AmxFewTile<Load>::multiply_keys(const int* columns, int n) {
  for (int tile = 0; tile * kTileRows < n; ++tile) {
    clear_columns<N>();
    for (int step = 0; step < s_.steps(); ++step) {
      multiply_shared<N, false, !kScaled<Load>>(s_.keys(tile, step),
                                                [&](int i) HWY_ATTR { return s_.queries(columns[i], step); });
    }
    store_columns<N>(s_.few_scores(0) + tile * kTileRows * kColumn, s_.few_scores(1) - s_.few_scores(0));
  }
}

/// Weighted values of N columns.
template <class Load>
template <int N>
void AmxFewTile<Load>::multiply_values(int n) {
  for (int tile = 0; tile * 16 < dim_; ++tile) {
    clear_columns<N>();
    for (int step = 0; step * kStep < n; ++step) {
      multiply_shared<N, true, !kScaled<Load>>(s_.values(step, tile),
                                               [&](int i) HWY_ATTR { return s_.few_weights(i, step); });
    }
    store_columns<N>(s_.sums(0) + tile * kTileRows * kColumn, s_.sums(1) - s_.sums(0));
  }
}

/// A column's scores are there: hides what it doesn't see, and finds the largest ones.
template <class Load>
HWY_INLINE OnlineSoftmax<AmxLanes> AmxFewTile<Load>::take_scores(int place, int column, int interval, int first,
                                                                 int n) {
  const __m512 best = this->hide_and_find_largest(s_.few_scores(place), interval, first, n);
  return {F(), hn::Load(F(), s_.max(column)), hn::Vec<F>{best}};
}

/// Scores of 32 slots, those below n, become weights.
template <class Load>
template <bool Whole>
HWY_INLINE void AmxFewTile<Load>::weigh(OnlineSoftmax<F>& softmax, int place, int step, int n) {
  const float *score = s_.few_scores(place) + step * kStep * kColumn, *scales = s_.value_scales() + step * kStep;
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
  std::uint16_t* to = s_.few_weights(place, step);
  for (int r = 0; r < kTileRows; ++r) {
    _mm512_store_si512(to + r * kStep, high[r]);
    _mm512_store_si512(to + kTileSize + r * kStep, low[r]);
  }
}

template <class Load>
HWY_INLINE void AmxFewTile<Load>::take_values(int place, int column) {
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
void AmxFewTile<Load>::attend(int kv_head, int index, int first, int n) {
  this->set_keys(kv_head, first, n);
  set_values(kv_head, first, n);
  const int first_column = index * columns_;
  int visible[AmxScratch::kMaxColumns];
  const int count = this->find_visible(first, n, visible);
  for (int i = 0; i < count; i += AmxScratch::kFew) {
    switch (std::min(AmxScratch::kFew, count - i)) {
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
void AmxFewTile<Load>::attend_columns(int first_column, const int* which, int first, int n) {
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
void AmxFewTile<Load>::store_states(int kv_head, int index) const {
  const int first_column = index * columns_;
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

#endif  // COPPICE_AMX_FEW_INL
