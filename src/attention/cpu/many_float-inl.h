// Products of many-inl.h in f32. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_MANY_FLOAT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MANY_FLOAT_INL
#undef COPPICE_MANY_FLOAT_INL
#else
#define COPPICE_MANY_FLOAT_INL
#endif
// clang-format on

#include <algorithm>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/many-inl.h"
#include "simd/kernel-inl.h"

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
        values_(scratch.values()) {}

  HWY_INLINE void set_query(int column, const float* query) {
    for (int i = 0; i < head_dim_; ++i) queries_[std::ptrdiff_t{i} * stride_ + column] = query ? query[i] : 0.0F;
  }

  template <class Load>
  HWY_INLINE void set_block(int n, const ManyRows& keys, const ManyRows& values) {
    convert<Load>(n, keys, kMany, keys_);
    convert<Load>(n, values, 1, values_);
  }

  template <int Vectors, class D>
  HWY_INLINE void score(D d, int n, int at, float* scores) const {
    using V = hn::Vec<D>;
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int key = 0; key < n; key += kMany) {
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
        for (int v = 0; v < Vectors; ++v) hn::Store(sums[k][v], d, scores + ((key + k) * Vectors + v) * lanes);
      }
    }
  }

  template <int Vectors, class D>
  HWY_INLINE void weigh(D d, OnlineSoftmax<D>& softmax, int n, int v, float* scores) const {
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int k = 0; k < n; ++k) {
      float* score = scores + (k * Vectors + v) * lanes;
      hn::Store(softmax.weight(hn::Load(d, score)), d, score);
    }
  }

  template <int Vectors, class D>
  HWY_INLINE void add_values(D d, int n, int first, const float* weights, const float* rescale, float* out) const {
    using V = hn::Vec<D>;
    const int lanes = static_cast<int>(hn::Lanes(d));
    V acc[kMany][Vectors];
    for (int i = 0; i < kMany; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        acc[i][v] = hn::Mul(hn::Load(d, out + i * stride_ + v * lanes), hn::Load(d, rescale + v * lanes));
      }
    }
    const float* values = values_ + first;
    for (int k = 0; k < n; ++k, values += head_dim_, weights += Vectors * lanes) {
      V p[Vectors];
      for (int v = 0; v < Vectors; ++v) p[v] = hn::Load(d, weights + v * lanes);
      for (int i = 0; i < kMany; ++i) {
        const V value = hn::Set(d, values[i]);
        for (int v = 0; v < Vectors; ++v) acc[i][v] = hn::MulAdd(value, p[v], acc[i][v]);
      }
    }
    for (int i = 0; i < kMany; ++i) {
      for (int v = 0; v < Vectors; ++v) hn::Store(acc[i][v], d, out + i * stride_ + v * lanes);
    }
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

  int head_dim_, stride_;
  float* queries_;  ///< [head_dim][stride]
  float* keys_;     ///< [n, padded][head_dim]
  float* values_;   ///< [n][head_dim]
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_MANY_FLOAT_INL
