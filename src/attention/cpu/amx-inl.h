// Tiles of many queries with AMX (amx_heads-inl.h), more than three columns of 16. Weighted values are values x
// weights, both as softmax leaves them, so values are transposed, once for all columns. Columns are computed by twos,
// in groups: while vectors weigh a group's scores, AMX multiplies the values of the group before and the keys of the
// one behind. Included once for each instruction set.

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

#include "attention/cpu/amx_heads-inl.h"
#include "simd/kernel-inl.h"

#if COPPICE_SIMD_AMX

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

constexpr int kPairs = kStep / 2;  ///< of slots in a step

template <class Load>
class AmxTile : public AmxHeads<Load> {
 public:
  using AmxHeads<Load>::AmxHeads;

  void attend(int kv_head, int index, int first, int n);
  void store_states(int kv_head, int index) const;

 private:
  using Heads = AmxHeads<Load>;
  using F = AmxLanes;
  using Heads::t_, Heads::s_, Heads::dim_, Heads::n_queries_, Heads::columns_, Heads::ahead_, Heads::lines_;
  static constexpr int kProducts = kScaled<Load> ? 2 : 3;  ///< for one of whole numbers

  void set_values(int kv_head, int first, int n);
  template <int N>
  void attend_groups(int first_column, const int* which, int groups, int first, int n);
  template <int N, class Work>
  void multiply_keys(const int* columns, int buffer, int step, Work&& work);
  template <int N, class Work>
  void multiply_values(const int* columns, int buffer, int steps, Work&& work);
  template <int N, int Tiles, class Work>
  void multiply_values(const int* columns, int buffer, int tile, int steps, Work&& work);
  OnlineSoftmax<F> take_scores(float* score, int column, int interval, int first, int n);
  template <int N>
  int weigh_some(OnlineSoftmax<F>* softmax, int buffer, int next, int end, int n);
  template <bool Whole>
  void weigh(OnlineSoftmax<F>& softmax, float* scores, const float* scales, int pairs, int left);
};

template <class Load>
void AmxTile<Load>::set_values(int kv_head, int first, int n) {
  const std::byte* rows[kStep];
  for (int k = 0; k < n; k += kStep) {
    this->template find<kStep>([&](int block) { return t_.values(block, kv_head); }, first + k, std::min(kStep, n - k),
                               rows);
    if constexpr (kScaled<Load>) {
      for (int i = 0; i < kStep; ++i) s_.value_scales()[k + i] = finite_scale_of(rows[i]);
    }
    for (int at = 0; at < dim_; at += 16) {
      __m512i high[kTileRows], low[kTileRows];
      for (int i = 0; i < kTileRows; ++i) {
        const Parts parts(load_16<Load>(rows[2 * i], at), load_16<Load>(rows[2 * i + 1], at));
        high[i] = parts.high;
        low[i] = parts.low;
      }
      store_transposed<!kScaled<Load>>(high, low, s_.values(k / kStep, at / 16));
    }
  }
}

/// Scores of N columns, 32 slots. work(): what vectors do meanwhile, piece by piece.
template <class Load>
template <int N, class Work>
void AmxTile<Load>::multiply_keys(const int* columns, int buffer, int step, Work&& work) {
  clear_tiles<2, N>();
  for (int at = 0; at < s_.steps(); ++at) {
    multiply<2, N, !kScaled<Load>, kPlain>([&](int i) HWY_ATTR { return s_.keys(2 * step + i, at); },
                                           [&](int i) HWY_ATTR { return s_.queries(columns[i], at); }, work);
  }
  store_tiles<2, N>([&](int i, int k) HWY_ATTR { return s_.scores(buffer, k, step) + i * kTileRows * kColumn; });
}

/// Adds N columns' weighted values to their sums.
template <class Load>
template <int N, class Work>
void AmxTile<Load>::multiply_values(const int* columns, int buffer, int steps, Work&& work) {
  int tile = 0;
  for (; (tile + 2) * 16 <= dim_; tile += 2) multiply_values<N, 2>(columns, buffer, tile, steps, work);
  if (tile * 16 < dim_) multiply_values<N, 1>(columns, buffer, tile, steps, work);
}

template <class Load>
template <int N, int Tiles, class Work>
HWY_INLINE void AmxTile<Load>::multiply_values(const int* columns, int buffer, int tile, int steps, Work&& work) {
  const auto sums = [&](int i, int k) HWY_ATTR { return s_.acc(columns[k]) + (tile + i) * 16 * kColumn; };
  load_tiles<Tiles, N>(sums);
  for (int step = 0; step < steps; ++step) {
    multiply<Tiles, N, !kScaled<Load>, kWoven>([&](int i) HWY_ATTR { return s_.values(step, tile + i); },
                                               [&](int i) HWY_ATTR { return s_.weights(buffer, i, step); }, work);
  }
  store_tiles<Tiles, N>(sums);
}

/// A column's scores are there: hides what it doesn't see, finds the largest ones, and brings the states to these.
template <class Load>
HWY_INLINE OnlineSoftmax<AmxLanes> AmxTile<Load>::take_scores(float* score, int column, int interval, int first,
                                                              int n) {
  const __m512 best = this->hide_and_find_largest(score, interval, first, n);
  const auto max = hn::Load(F(), s_.max(column));
  const OnlineSoftmax<F> softmax(F(), max, hn::Vec<F>{best});
  if (hn::AllFalse(F(), hn::Gt(softmax.max(), max))) return softmax;
  const auto rescale = softmax.rescale();
  float* acc = s_.acc(column);
  for (int i = 0; i < dim_; ++i, acc += kColumn) hn::Store(hn::Mul(hn::Load(F(), acc), rescale), F(), acc);
  hn::Store(hn::Mul(hn::Load(F(), s_.sum(column)), rescale), F(), s_.sum(column));
  hn::Store(softmax.max(), F(), s_.max(column));
  return softmax;
}

/// Scores of some pairs of slots become weights, in their place. Of the slots those below `left` count.
template <class Load>
template <bool Whole>
HWY_INLINE void AmxTile<Load>::weigh(OnlineSoftmax<F>& softmax, float* scores, const float* scales, int pairs,
                                     int left) {
  OnlineSoftmax<F> local = softmax;
  const auto weight = [&](int k) HWY_ATTR {
    if (!Whole && k >= left) return _mm512_setzero_ps();
    const __m512 p = local.weight(hn::Load(F(), scores + k * kColumn)).raw;
    return kScaled<Load> ? _mm512_mul_ps(p, _mm512_set1_ps(scales[k])) : p;
  };
  ahead_->fetch(lines_ * pairs);
  for (int i = 0; i < pairs; ++i) {
    const __m512 even = weight(2 * i), odd = weight(2 * i + 1);
    const Parts parts(even, odd);
    _mm512_store_si512(scores + 2 * i * kColumn, parts.high);
    _mm512_store_si512(scores + (2 * i + 1) * kColumn, parts.low);
  }
  softmax = local;
}

template <class Load>
void AmxTile<Load>::attend(int kv_head, int index, int first, int n) {
  this->set_keys(kv_head, first, n);
  set_values(kv_head, first, n);
  const int first_column = index * columns_;
  int visible[AmxScratch::kMaxColumns];
  const int count = this->find_visible(first, n, visible);
  if (count > 1) attend_groups<2>(first_column, visible, count / 2, first, n);
  if (count % 2 != 0) attend_groups<1>(first_column, visible + count - 1, 1, first, n);
}

/// Groups of N columns of a head. `which`: they count from the head's first one. While vectors weigh a group's scores,
/// the tiles multiply the values of the group before and the keys of the one behind.
template <class Load>
template <int N>
void AmxTile<Load>::attend_groups(int first_column, const int* which, int groups, int first, int n) {
  const int steps = (n + kStep - 1) / kStep, total = steps * N * kPairs;
  int columns[AmxScratch::kMaxColumns];
  for (int i = 0; i < groups * N; ++i) columns[i] = first_column + which[i];
  for (int step = 0; step < steps; ++step) multiply_keys<N>(columns, 0, step, [] {});
  for (int group = 0; group < groups; ++group) {
    const int* own = columns + group * N;
    const int buffer = group % 2, other = 1 - buffer;
    OnlineSoftmax<F> softmax[N];
    for (int i = 0; i < N; ++i) {
      softmax[i] = take_scores(s_.scores(buffer, i, 0), own[i], own[i] - first_column, first, n);
    }
    int next = 0;
    const auto weigh_until = [&](int end) HWY_ATTR {
      while (next < end) next += weigh_some<N>(softmax, buffer, next, end, n);
    };
    const bool before = group > 0, behind = group + 1 < groups;
    const int pieces = steps * kProducts * ((before ? (dim_ + 31) / 32 : 0) + (behind ? s_.steps() : 0));
    const int at_once = pieces > 0 ? (total + pieces - 1) / pieces : total;
    const auto work = [&]() HWY_ATTR { weigh_until(std::min(next + at_once, total)); };
    if (before) multiply_values<N>(own - N, other, steps, work);
    if (behind) {
      for (int step = 0; step < steps; ++step) multiply_keys<N>(own + N, other, step, work);
    }
    weigh_until(total);
    for (int i = 0; i < N; ++i) {
      float* sum = s_.sum(own[i]);
      hn::Store(hn::Add(hn::Load(F(), sum), softmax[i].total()), F(), sum);
    }
  }
  multiply_values<N>(columns + (groups - 1) * N, (groups - 1) % 2, steps, [] {});
}

/// Of a group's pairs of slots, which are numbered step by step and of these column by column, some of [next, end).
/// Returns how many.
template <class Load>
template <int N>
HWY_INLINE int AmxTile<Load>::weigh_some(OnlineSoftmax<F>* softmax, int buffer, int next, int end, int n) {
  const int step = next / (N * kPairs), i = next / kPairs % N, pair = next % kPairs;
  const int pairs = std::min(kPairs - pair, end - next), slot = step * kStep + 2 * pair;
  float* scores = s_.scores(buffer, i, 0) + slot * kColumn;
  const float* scales = s_.value_scales() + slot;
  if ((step + 1) * kStep <= n) {
    weigh<true>(softmax[i], scores, scales, pairs, 0);
  } else {
    weigh<false>(softmax[i], scores, scales, pairs, n - slot);
  }
  return pairs;
}

template <class Load>
void AmxTile<Load>::store_states(int kv_head, int index) const {
  for (int i = 0; i < columns_; ++i) {
    const int column = index * columns_ + i, n = std::min(kColumn, n_queries_ - i * kColumn);
    for (int at = 0; at < dim_; at += 16) {
      __m512i values[kColumn];
      for (int k = 0; k < 16; ++k) values[k] = _mm512_load_si512(s_.acc(column) + (at + k) * kColumn);
      simd::HWY_NAMESPACE::transpose(values);
      for (int q = 0; q < n; ++q) _mm512_storeu_si512(t_.state(kv_head, i * kColumn + q) + at, values[q]);
    }
    for (int q = 0; q < n; ++q) {
      float* to = t_.state(kv_head, i * kColumn + q) + dim_;
      to[0] = s_.max(column)[q] * kLn2;
      to[1] = s_.sum(column)[q];
    }
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_SIMD_AMX

#endif  // COPPICE_AMX_INL
