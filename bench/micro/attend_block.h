// The baseline that docs/adr/0006 measured layouts, gathering and fusing with, kept as it was then, so that its table can
// be taken again. The server's kernel is another one (src/attention/cpu, docs/adr/0008).
//
// The benchmark's inner loop: decode attention of a few query rows over one block of one key head, with a running
// softmax (Milakov & Gimelshein 2018). Lanes lie along head_dim, f16 is promoted to f32. Gathering and fused backends
// both use it, so that they differ in what they read and write, not in arithmetic.
//
// Compiled for the machine at hand (Highway's static dispatch): a benchmark never leaves it. Stateless.
#pragma once

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>

namespace coppice::bench {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

inline constexpr int kMaxRows = 4;     ///< query rows that one pass keeps in registers
inline constexpr int kKeysAtOnce = 4;  ///< keys times rows are as many sums as registers hold
inline constexpr int kMaxKeys = 64;
inline constexpr std::size_t kLine = 64;

inline Floats load(const float* p) {
  return hn::LoadU(FloatTag(), p);
}
inline Floats load(const hwy::float16_t* p) {
  return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::float16_t, FloatTag>(), p));
}

/// One head's part of a block. T is f16, or f32 if several passes use it.
template <class T>
struct BlockHead {
  const T* keys = nullptr;
  const T* values = nullptr;
  std::size_t stride = 0;  ///< elements from one slot to the next
  int n_keys = 0;
  int dim = 0;
};

/// Memory that the loop asks for while it computes: the next block. Hardware prefetchers can't know a table.
struct Ahead {
  const std::byte* keys = nullptr;  ///< null: nothing
  const std::byte* values = nullptr;
  std::size_t bytes_per_key = 0;

  void fetch(const std::byte* from, int key, int n) const {
    if (from == nullptr) return;
    const std::byte* p = from + static_cast<std::size_t>(key) * bytes_per_key;
    const std::byte* end = p + static_cast<std::size_t>(n) * bytes_per_key;
    for (; p < end; p += kLine) __builtin_prefetch(p, 0, 2);  // into L2: a block may be larger than L1
  }
};

/// Running state of the rows of one key head: max of scores, sum of exp(score - max), values weighted by them.
struct RowStates {
  float* max = nullptr;  ///< [rows]
  float* sum = nullptr;  ///< [rows]
  float* acc = nullptr;  ///< [rows, dim]
};

template <class D>
void store_sum_of_128s(D d, hn::Vec<D> v, float* to) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    store_sum_of_128s(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)), to);
  } else {
    hn::StoreU(v, d, to);
  }
}

/// to[0..3] = sum of all lanes of a, b, c, d.
inline void store_sums(Floats a, Floats b, Floats c, Floats d, float* to) {
  const FloatTag f;
  const hn::RepartitionToWide<FloatTag> w;
  const Floats ab = hn::Add(hn::InterleaveLower(f, a, b), hn::InterleaveUpper(f, a, b));
  const Floats cd = hn::Add(hn::InterleaveLower(f, c, d), hn::InterleaveUpper(f, c, d));
  const auto lower = hn::InterleaveLower(w, hn::BitCast(w, ab), hn::BitCast(w, cd));
  const auto upper = hn::InterleaveUpper(w, hn::BitCast(w, ab), hn::BitCast(w, cd));
  store_sum_of_128s(f, hn::Add(hn::BitCast(f, lower), hn::BitCast(f, upper)), to);
}

/// scores[R][kMaxKeys] = q . k. q: [R, dim], scaled.
template <int R, class T>
void score_keys(const BlockHead<T>& block, const float* q, const Ahead& ahead, float* scores) {
  const int lanes = static_cast<int>(hn::Lanes(FloatTag()));
  for (int key = 0; key < block.n_keys; key += kKeysAtOnce) {
    ahead.fetch(ahead.keys, key, kKeysAtOnce);
    const T* k = block.keys + static_cast<std::size_t>(key) * block.stride;
    Floats sums[R][kKeysAtOnce];
    for (int r = 0; r < R; ++r) {
      for (int j = 0; j < kKeysAtOnce; ++j) sums[r][j] = hn::Zero(FloatTag());
    }
    for (int d = 0; d < block.dim; d += lanes) {
      Floats kd[kKeysAtOnce];
      for (int j = 0; j < kKeysAtOnce; ++j) kd[j] = load(k + static_cast<std::size_t>(j) * block.stride + d);
      for (int r = 0; r < R; ++r) {
        const Floats qd = load(q + r * block.dim + d);
        for (int j = 0; j < kKeysAtOnce; ++j) sums[r][j] = hn::MulAdd(qd, kd[j], sums[r][j]);
      }
    }
    for (int r = 0; r < R; ++r) {
      store_sums(sums[r][0], sums[r][1], sums[r][2], sums[r][3], scores + r * kMaxKeys + key);
    }
  }
}

/// Turns one row's scores into weights relative to the row's new maximum. Returns the factor for what it had.
inline float weigh(float* scores, int n_keys, float& max, float& sum) {
  const FloatTag f;
  const int lanes = static_cast<int>(hn::Lanes(f));
  Floats top = hn::Set(f, max);
  for (int key = 0; key < n_keys; key += lanes) top = hn::Max(top, load(scores + key));
  const Floats new_max = hn::MaxOfLanes(f, top);
  const float keep = hn::GetLane(hn::Exp(f, hn::Sub(hn::Set(f, max), new_max)));
  Floats sums = hn::Zero(f);
  for (int key = 0; key < n_keys; key += lanes) {
    const Floats weight = hn::Exp(f, hn::Sub(load(scores + key), new_max));
    sums = hn::Add(sums, weight);
    hn::StoreU(weight, f, scores + key);
  }
  max = hn::GetLane(new_max);
  sum = sum * keep + hn::GetLane(hn::SumOfLanes(f, sums));
  return keep;
}

/// acc = acc * keep + weights . values. acc: [R, dim], weights: [R][kMaxKeys].
template <int R, class T>
void add_values(const BlockHead<T>& block, const float* weights, const float* keep, const Ahead& ahead, float* acc) {
  const FloatTag f;
  constexpr int kColumns = 4;
  const int lanes = static_cast<int>(hn::Lanes(f));
  for (int first = 0; first < block.dim; first += kColumns * lanes) {
    Floats sums[R][kColumns];
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kColumns; ++c) {
        sums[r][c] = hn::Mul(load(acc + r * block.dim + first + c * lanes), hn::Set(f, keep[r]));
      }
    }
    for (int key = 0; key < block.n_keys; ++key) {
      if (first == 0) ahead.fetch(ahead.values, key, 1);
      const T* v = block.values + static_cast<std::size_t>(key) * block.stride + first;
      Floats vd[kColumns];
      for (int c = 0; c < kColumns; ++c) vd[c] = load(v + c * lanes);
      for (int r = 0; r < R; ++r) {
        const Floats weight = hn::Set(f, weights[r * kMaxKeys + key]);
        for (int c = 0; c < kColumns; ++c) sums[r][c] = hn::MulAdd(weight, vd[c], sums[r][c]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < kColumns; ++c) hn::StoreU(sums[r][c], f, acc + r * block.dim + first + c * lanes);
    }
  }
}

template <int R, class T>
void attend_rows(const BlockHead<T>& block, const float* q, const Ahead& ahead, RowStates states) {
  HWY_ALIGN float scores[R * kMaxKeys];
  float keep[R];
  score_keys<R>(block, q, ahead, scores);
  for (int r = 0; r < R; ++r) keep[r] = weigh(scores + r * kMaxKeys, block.n_keys, states.max[r], states.sum[r]);
  add_values<R>(block, scores, keep, ahead, states.acc);
}

/// Adds one block to the states of n_rows rows. q: [n_rows, dim], scaled.
/// REQUIRES: n_keys is at most kMaxKeys and a multiple of the lanes; dim a multiple of 4 times the lanes.
template <class T>
void attend_block(const BlockHead<T>& block, const float* q, int n_rows, Ahead ahead, RowStates states) {
  for (int row = 0; row < n_rows; row += kMaxRows) {
    const RowStates part{states.max + row, states.sum + row, states.acc + row * block.dim};
    const float* part_q = q + row * block.dim;
    switch (std::min(n_rows - row, kMaxRows)) {
      case 1:
        attend_rows<1>(block, part_q, ahead, part);
        break;
      case 2:
        attend_rows<2>(block, part_q, ahead, part);
        break;
      case 3:
        attend_rows<3>(block, part_q, ahead, part);
        break;
      default:
        attend_rows<4>(block, part_q, ahead, part);
        break;
    }
    ahead = {};  // once is enough
  }
}

}  // namespace coppice::bench
