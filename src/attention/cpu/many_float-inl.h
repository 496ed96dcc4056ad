// The loops of a tile of many queries in f32. A head's keys and values of a block are converted once, then every element is
// broadcast against vectors of queries: scores, softmax and weighted values are all vertical. Included once for each
// instruction set.

// clang-format off
#if defined(COPPICE_MANY_FLOAT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MANY_FLOAT_INL
#undef COPPICE_MANY_FLOAT_INL
#else
#define COPPICE_MANY_FLOAT_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <algorithm>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/many_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

class FloatProducts {
 public:
  FloatProducts(TileScratch& scratch, int head_dim, int stride)
      : head_dim_(head_dim),
        stride_(stride),
        queries_(scratch.queries()),
        keys_(scratch.keys()),
        values_(scratch.values()),
        scores_(scratch.scores()) {}

  /// query: [head_dim], scaled. nullptr: zeros.
  HWY_INLINE void set_query(int column, const float* query) {
    for (int i = 0; i < head_dim_; ++i) queries_[std::ptrdiff_t{i} * stride_ + column] = query ? query[i] : 0.0F;
  }

  template <class Load>
  HWY_INLINE void set_block(int n, const ManyRows& keys, const ManyRows& values) {
    convert<Load>(n, keys, kMany, keys_);
    convert<Load>(n, values, 1, values_);
  }

  /// Adds the block to the states of columns [at, at + Vectors * lanes).
  template <int Vectors, class D>
  HWY_INLINE void attend(D d, const ManyHead& h, const ManyBlock& b, int at, bool masked) {
    HWY_ALIGN float rescale[kManyVectors * TileScratch::kMaxLanes];
    score<Vectors>(d, b, at);
    if (masked) hide<Vectors>(d, h, b, at, scores_);
    weigh<Vectors>(d, h, b, at, rescale);
    for (int i = 0; i < head_dim_; i += kMany) add_values<Vectors, kMany>(d, h, b, at, i, rescale);
  }

 private:
  /// [n, padded to `pad` rows with zeros][head_dim]
  template <class Load>
  HWY_INLINE void convert(int n, const ManyRows& rows, int pad, float* to) {
    const hn::ScalableTag<float> d;
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int k = 0; k < n; ++k, to += head_dim_) {
      if (rows.next) prefetch<Load>(rows.next, rows.row_bytes, k, head_dim_);
      const std::byte* row = rows.row(k);
      if constexpr (kScaled<Load>) {
        const auto scale = hn::Set(d, scale_of(row));
        for (int i = 0; i < head_dim_; i += lanes) hn::Store(hn::Mul(Load::load(d, row, i), scale), d, to + i);
      } else {
        for (int i = 0; i < head_dim_; i += lanes) hn::Store(Load::load(d, row, i), d, to + i);
      }
    }
    std::fill_n(to, std::ptrdiff_t{(n + pad - 1) / pad * pad - n} * head_dim_, 0.0F);
  }

  template <int Vectors, class D>
  HWY_INLINE void score(D d, const ManyBlock& b, int at) {
    using V = hn::Vec<D>;
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int key = 0; key < b.n; key += kMany) {
      V sums[kMany][Vectors];
      for (auto& k : sums) {
        for (V& s : k) s = hn::Zero(d);
      }
      const float* keys = keys_ + std::ptrdiff_t{key} * head_dim_;
      const float* queries = queries_ + at;
      for (int i = 0; i < head_dim_; ++i, queries += stride_) {
        V query[Vectors];
        for (int v = 0; v < Vectors; ++v) query[v] = hn::Load(d, queries + v * lanes);
        for (int k = 0; k < kMany; ++k) {
          const V value = hn::Set(d, keys[k * head_dim_ + i]);
          for (int v = 0; v < Vectors; ++v) sums[k][v] = hn::MulAdd(value, query[v], sums[k][v]);
        }
      }
      for (int k = 0; k < kMany; ++k) {
        for (int v = 0; v < Vectors; ++v) hn::Store(sums[k][v], d, scores_ + ((key + k) * Vectors + v) * lanes);
      }
    }
  }

  /// Scores become weights. rescale: by what the states so far must be scaled.
  template <int Vectors, class D>
  HWY_INLINE void weigh(D d, const ManyHead& h, const ManyBlock& b, int at, float* rescale) {
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int v = 0; v < Vectors; ++v) {
      const int column = at + v * lanes;
      float* scores = scores_ + v * lanes;
      const auto old_max = hn::Load(d, h.max + column);
      auto max = old_max;
      for (int k = 0; k < b.n; ++k) max = larger(max, hn::Load(d, scores + k * Vectors * lanes));
      // A query that has seen nothing yet has max -inf: -inf minus -inf is NaN, whose exponential here is 0.
      auto total = hn::Zero(d);
      for (int k = 0; k < b.n; ++k) {
        const auto p = exp_of(d, hn::Sub(hn::Load(d, scores + k * Vectors * lanes), max));
        hn::Store(p, d, scores + k * Vectors * lanes);
        total = hn::Add(total, p);
      }
      const auto scale = rescale_of(d, old_max, max);
      hn::Store(scale, d, rescale + v * lanes);
      hn::Store(max, d, h.max + column);
      hn::Store(hn::MulAdd(hn::Load(d, h.sum + column), scale, total), d, h.sum + column);
    }
  }

  template <int Vectors, int Values, class D>
  HWY_INLINE void add_values(D d, const ManyHead& h, const ManyBlock& b, int at, int first, const float* rescale) {
    using V = hn::Vec<D>;
    const int lanes = static_cast<int>(hn::Lanes(d));
    V acc[Values][Vectors];
    float* out = h.acc + std::ptrdiff_t{first} * h.stride + at;
    for (int i = 0; i < Values; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        acc[i][v] = hn::Mul(hn::Load(d, out + i * h.stride + v * lanes), hn::Load(d, rescale + v * lanes));
      }
    }
    const float* values = values_ + first;
    const float* weights = scores_;
    for (int k = 0; k < b.n; ++k, values += head_dim_, weights += Vectors * lanes) {
      V p[Vectors];
      for (int v = 0; v < Vectors; ++v) p[v] = hn::Load(d, weights + v * lanes);
      for (int i = 0; i < Values; ++i) {
        const V value = hn::Set(d, values[i]);
        for (int v = 0; v < Vectors; ++v) acc[i][v] = hn::MulAdd(value, p[v], acc[i][v]);
      }
    }
    for (int i = 0; i < Values; ++i) {
      for (int v = 0; v < Vectors; ++v) hn::Store(acc[i][v], d, out + i * h.stride + v * lanes);
    }
  }

  int head_dim_, stride_;
  float* queries_;  ///< [head_dim][stride]
  float* keys_;     ///< [n, padded][head_dim]
  float* values_;   ///< [n][head_dim]
  float* scores_;   ///< [n, padded][Vectors * lanes]
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_MANY_FLOAT_INL
