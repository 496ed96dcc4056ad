// The loops of a tile of many queries in 16-bit whole numbers: one instruction multiplies two pairs of them and adds both
// products in each 32-bit lane, twice as many products as of f32. Otherwise as in f32 (many_float-inl.h). Included once for
// each instruction set.
//
// No sum leaves 32 bits, however large the numbers were:
//   - a query is a multiple of a unit that makes it 32,767 long, a slot's key of one that makes its largest value 65,000 /
//     sqrt(head_dim) and so its length at most 65,000; a score is at most the product of the two (Cauchy-Schwarz);
//   - a slot's largest value is 32,767 of its units; a block's weights times these units are at most 32,700 of theirs, and
//     together 65,400.
// What rounding adds to lengths and sums fits, too. ADR 0014 says what it costs.

// clang-format off
#if defined(COPPICE_MANY_WHOLE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MANY_WHOLE_INL
#undef COPPICE_MANY_WHOLE_INL
#else
#define COPPICE_MANY_WHOLE_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/many_block-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kQueryLength = 32767.0F, kKeyLength = 65000.0F, kMostWeight = 32700.0F;

/// sum + the products of both halves of a and b, in each lane. V: of 32-bit numbers; a and b are pairs of 16-bit ones.
template <class V>
HWY_INLINE V add_products(V sum, V a, V b) {
#if HWY_TARGET == HWY_AVX3_DL
  // Not the intrinsic: clang 19 makes two instructions of it where it takes them to be as fast. And AVX512-VNNI's, which
  // is all that this target is chosen for: the same instruction of AVX-VNNI is another one.
  asm("%{evex%} vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(b.raw));
  return sum;
#else
  const hn::DFromV<V> d;
  const hn::Repartition<std::int16_t, decltype(d)> halves;
  V unused = hn::Zero(d);  // on x86
  return hn::ReorderWidenMulAccumulate(d, hn::BitCast(halves, a), hn::BitCast(halves, b), sum, unused);
#endif
}

/// x * inverse, rounded, as the low 16 bits of each lane. REQUIRES: it is below 2^15 in size; else the bits are any.
template <class D, class V = hn::Vec<D>>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> whole(D d, V x, V inverse) {
  return hn::BitCast(hn::RebindToSigned<D>(), hn::MulAdd(x, inverse, hn::Set(d, 12582912.0F)));  // 1.5 * 2^23
}

/// The low 16 bits of both, side by side.
template <class V>
HWY_INLINE V pair(V first, V second) {
  const hn::DFromV<V> di;
  const hn::Repartition<std::int16_t, decltype(di)> halves;
  return hn::BitCast(di, hn::OddEven(hn::BitCast(halves, hn::ShiftLeft<16>(second)), hn::BitCast(halves, first)));
}

/// A head as pairs: [n / 2]. Value i lies beside value i + lanes of a vector, in queries as in keys. at(d, i): values
/// [i, i + lanes). REQUIRES: n is a multiple of 16.
template <class At>
HWY_INLINE void store_pairs(int n, float inverse, At&& at, std::int32_t* to) {
  const auto store = [&](auto d, int i) HWY_ATTR {
    const int lanes = static_cast<int>(hn::Lanes(d));
    const auto by = hn::Set(d, inverse);
    const auto both = pair(whole(d, at(d, i), by), whole(d, at(d, i + lanes), by));
    hn::StoreU(both, hn::RebindToSigned<decltype(d)>(), to + i / 2);  // 80 values are 2.5 vectors of pairs
  };
  const hn::ScalableTag<float> d;
  const int stretch = 2 * static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + stretch <= n; i += stretch) store(d, i);
  if (i < n) store(hn::CappedTag<float, 8>(), i);
}

class WholeProducts {
 public:
  WholeProducts(TileScratch& scratch, int head_dim, int stride)
      : head_dim_(head_dim),
        stride_(stride),
        queries_(scratch.query_pairs()),
        query_units_(scratch.units()),
        keys_(scratch.key_pairs()),
        values_(scratch.value_pairs()),
        key_units_(scratch.key_units()),
        value_units_(scratch.value_units()),
        scores_(scratch.scores()),
        weights_(scratch.weight_pairs()) {}

  /// query: [head_dim], scaled. nullptr: zeros.
  HWY_INLINE void set_query(int column, const float* query) {
    std::int32_t* pairs = keys_;  // free until the first block
    float squares = 0.0F;
    for (int i = 0; query && i < head_dim_; ++i) squares += query[i] * query[i];
    const float length = std::sqrt(squares);
    const bool some = length > 1e-30F;  // less is nothing, and would overflow
    query_units_[column] = some ? length / kQueryLength : 1.0F;
    if (query) {
      const auto at = [&](auto d, int i) HWY_ATTR { return hn::Load(d, query + i); };
      store_pairs(head_dim_, some ? kQueryLength / length : 0.0F, at, pairs);
    } else {
      std::fill_n(pairs, head_dim_ / 2, 0);
    }
    for (int i = 0; i < head_dim_ / 2; ++i) queries_[std::ptrdiff_t{i} * stride_ + column] = pairs[i];
  }

  template <class Load>
  HWY_INLINE void set_block(int n, const ManyRows& keys, const ManyRows& values) {
    HWY_ALIGN float inverse[TileScratch::kMaxSlots];
    const int dim = head_dim_, even = (n + 1) / 2 * 2;
    measure<Load>(n, keys, kKeyLength / std::sqrt(static_cast<float>(dim)), key_units_, inverse);
    std::int32_t* to = keys_;
    for (int k = 0; k < n; ++k, to += dim / 2) {
      const std::byte* row = keys.row(k);
      store_pairs(dim, inverse[k], [&](auto d, int i) HWY_ATTR { return Load::load(d, row, i); }, to);
    }
    measure<Load>(n, values, 32767.0F, value_units_, inverse);
    to = values_;
    for (int k = 0; k < even; k += 2, to += dim) {
      const hn::ScalableTag<float> d;
      const std::byte *row = values.row(k),
                      *other = values.row(std::min(k + 1, n - 1));  // twice, where nothing weighs it
      const auto by = hn::Set(d, inverse[k]), other_by = hn::Set(d, inverse[k + 1]);
      for (int i = 0; i < dim; i += static_cast<int>(hn::Lanes(d))) {
        const auto both = pair(whole(d, Load::load(d, row, i), by), whole(d, Load::load(d, other, i), other_by));
        hn::Store(both, hn::RebindToSigned<decltype(d)>(), to + i);
      }
    }
  }

  /// Adds the block to the states of columns [at, at + Vectors * lanes).
  template <int Vectors, class D>
  HWY_INLINE void attend(D d, const ManyHead& h, const ManyBlock& b, int at, bool masked) {
    HWY_ALIGN float rescale[kManyVectors * TileScratch::kMaxLanes], units[kManyVectors * TileScratch::kMaxLanes];
    score<Vectors>(d, b, at);
    if (masked) hide<Vectors>(d, h, b, at, scores_);
    weigh<Vectors>(d, h, b, at, rescale, units);
    for (int i = 0; i < head_dim_; i += kMany) add_values<Vectors, kMany>(d, h, b, at, i, rescale, units);
  }

 private:
  /// Units that make the rows' largest values `most`, and what values are to be multiplied by; those behind the last row are
  /// any.
  template <class Load>
  HWY_INLINE void measure(int n, const ManyRows& rows, float most, float* units, float* inverse) {
    const int dim = head_dim_;
    for (int k = 0; k < n; k += kSlots) {
      const std::byte* row[kSlots];
      for (int s = 0; s < kSlots; ++s) {
        const int slot = std::min(k + s, n - 1);
        if (rows.next) prefetch<Load>(rows.next, rows.row_bytes, slot, dim);
        row[s] = rows.row(slot);
      }
      const hn::FixedTag<float, kSlots> four;
      if constexpr (kScaled<Load>) {  // codes are whole, and small
        for (int s = 0; s < kSlots; ++s) units[k + s] = scale_of(row[s]);
        hn::Store(hn::Set(four, 1.0F), four, inverse + k);
      } else {
        const auto largest = largest_of(row, dim);
        // A head with infinities or NaN is nothing (our codec writes no infinities), and so is one of zeros.
        const auto some = hn::And(hn::Gt(largest, hn::Zero(four)), hn::Lt(largest, hn::Set(four, 1e30F)));
        hn::Store(hn::IfThenElseZero(some, hn::Div(hn::Set(four, most), largest)), four, inverse + k);
        hn::Store(hn::IfThenElseZero(some, hn::Mul(largest, hn::Set(four, 1.0F / most))), four, units + k);
      }
    }
  }

  /// The largest sizes of values in four rows of f16. Without their signs these are in the order of their bits.
  HWY_INLINE hn::Vec<hn::FixedTag<float, kSlots>> largest_of(const std::byte* const* row, int dim) {
    const hn::FixedTag<float, kSlots> four;
    const hn::Rebind<hwy::float16_t, decltype(four)> half;
    hn::Vec<decltype(four)> largest;
    with_code_vectors(dim, [&](auto d16) HWY_ATTR {
      hn::Vec<decltype(d16)> bits[kSlots];
      for (auto& s : bits) s = hn::Zero(d16);
      for (int i = 0; i < dim; i += static_cast<int>(hn::Lanes(d16))) {
        for (int s = 0; s < kSlots; ++s) {
          const auto x = hn::LoadU(d16, reinterpret_cast<const std::int16_t*>(row[s]) + i);
          bits[s] = hn::Max(bits[s], hn::And(x, hn::Set(d16, 0x7FFF)));
        }
      }
      const auto max = [](auto x, auto y) HWY_ATTR { return hn::Max(x, y); };
      largest = hn::PromoteTo(four, hn::BitCast(half, fold_four(d16, max, bits[0], bits[1], bits[2], bits[3])));
    });
    return largest;
  }

  template <int Vectors, class D>
  HWY_INLINE void score(D d, const ManyBlock& b, int at) {
    const hn::RebindToSigned<D> di;
    using V = hn::Vec<decltype(di)>;
    const int lanes = static_cast<int>(hn::Lanes(d)), pairs = head_dim_ / 2;
    for (int key = 0; key < b.n; key += kMany) {
      V sums[kMany][Vectors];
      for (auto& k : sums) {
        for (V& s : k) s = hn::Zero(di);
      }
      const std::int32_t* keys[kMany];
      for (int k = 0; k < kMany; ++k) keys[k] = keys_ + std::ptrdiff_t{key + k} * pairs;
      const std::int32_t* queries = queries_ + at;
      for (int i = 0; i < pairs; ++i, queries += stride_) {
        V query[Vectors];
        for (int v = 0; v < Vectors; ++v) query[v] = hn::Load(di, queries + v * lanes);
        for (int k = 0; k < kMany; ++k) {
          const V value = hn::Set(di, keys[k][i]);
          for (int v = 0; v < Vectors; ++v) sums[k][v] = add_products(sums[k][v], value, query[v]);
        }
      }
      for (int k = 0; k < kMany; ++k) {
        const auto unit = hn::Set(d, key_units_[key + k]);
        for (int v = 0; v < Vectors; ++v) {
          hn::Store(hn::Mul(hn::ConvertTo(d, sums[k][v]), unit), d, scores_ + ((key + k) * Vectors + v) * lanes);
        }
      }
    }
  }

  /// Scores become weights. rescale: by what the states so far must be scaled, units: by what the block's sums must be.
  template <int Vectors, class D>
  HWY_INLINE void weigh(D d, const ManyHead& h, const ManyBlock& b, int at, float* rescale, float* units) {
    const hn::RebindToSigned<D> di;
    const int lanes = static_cast<int>(hn::Lanes(d));
    for (int v = 0; v < Vectors; ++v) {
      const int column = at + v * lanes;
      float* scores = scores_ + v * lanes;
      auto best = hn::Load(d, scores);
      for (int k = 1; k < b.n; ++k) best = hn::Max(best, hn::Load(d, scores + k * Vectors * lanes));
      const auto query_unit = hn::Load(d, query_units_ + column), block_max = hn::Mul(best, query_unit);
      const auto by = hn::Mul(query_unit, hn::Set(d, kLog2E));
      // A query that sees nothing here has best -inf: -inf minus -inf is NaN, whose exponential here is 0.
      auto total = hn::Zero(d), weighted = hn::Zero(d), largest = hn::Zero(d);
      for (int k = 0; k < b.n; ++k) {
        float* score = scores + k * Vectors * lanes;
        const auto p = exp2_of(d, hn::Mul(hn::Sub(hn::Load(d, score), best), by));
        const auto w = hn::Mul(p, hn::Set(d, value_units_[k]));
        hn::Store(w, d, score);
        total = hn::Add(total, p);
        weighted = hn::Add(weighted, w);
        largest = hn::Max(largest, w);
      }
      const auto bound = hn::Max(largest, hn::Mul(weighted, hn::Set(d, 0.5F)));
      const auto some = hn::Gt(bound, hn::Set(d, 1e-30F));
      const auto inverse = hn::IfThenElseZero(some, hn::Div(hn::Set(d, kMostWeight), bound));
      std::int32_t* weights = weights_ + v * lanes;
      for (int k = 0; k < b.n; k += 2) {
        const auto one = whole(d, hn::Load(d, scores + k * Vectors * lanes), inverse);
        const auto other =
            k + 1 < b.n ? whole(d, hn::Load(d, scores + (k + 1) * Vectors * lanes), inverse) : hn::Zero(di);
        hn::Store(pair(one, other), di, weights + k / 2 * Vectors * lanes);
      }
      const auto old_max = hn::Load(d, h.max + column), max = hn::Max(old_max, block_max);
      const auto scale = rescale_of(d, old_max, max), block_scale = rescale_of(d, block_max, max);
      hn::Store(scale, d, rescale + v * lanes);
      hn::Store(hn::Mul(block_scale, hn::Mul(bound, hn::Set(d, 1.0F / kMostWeight))), d, units + v * lanes);
      hn::Store(max, d, h.max + column);
      hn::Store(hn::MulAdd(hn::Load(d, h.sum + column), scale, hn::Mul(total, block_scale)), d, h.sum + column);
    }
  }

  template <int Vectors, int Values, class D>
  HWY_INLINE void add_values(D d, const ManyHead& h, const ManyBlock& b, int at, int first, const float* rescale,
                             const float* units) {
    const hn::RebindToSigned<D> di;
    using V = hn::Vec<decltype(di)>;
    const int lanes = static_cast<int>(hn::Lanes(d));
    V acc[Values][Vectors];
    for (auto& i : acc) {
      for (V& v : i) v = hn::Zero(di);
    }
    const std::int32_t* values = values_ + first;
    const std::int32_t* weights = weights_;
    for (int k = 0; k < b.n; k += 2, values += head_dim_, weights += Vectors * lanes) {
      V p[Vectors];
      for (int v = 0; v < Vectors; ++v) p[v] = hn::Load(di, weights + v * lanes);
      for (int i = 0; i < Values; ++i) {
        const V value = hn::Set(di, values[i]);
        for (int v = 0; v < Vectors; ++v) acc[i][v] = add_products(acc[i][v], value, p[v]);
      }
    }
    float* out = h.acc + std::ptrdiff_t{first} * h.stride + at;
    for (int i = 0; i < Values; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        float* to = out + i * h.stride + v * lanes;
        const auto before = hn::Mul(hn::Load(d, to), hn::Load(d, rescale + v * lanes));
        hn::Store(hn::MulAdd(hn::ConvertTo(d, acc[i][v]), hn::Load(d, units + v * lanes), before), d, to);
      }
    }
  }

  int head_dim_, stride_;
  std::int32_t* queries_;            ///< [head_dim / 2][stride]
  float* query_units_;               ///< [stride]
  std::int32_t* keys_;               ///< [n, padded][head_dim / 2]
  std::int32_t* values_;             ///< [n / 2][head_dim]: a slot's beside the next one's
  float *key_units_, *value_units_;  ///< [n, padded]
  float* scores_;                    ///< [n, padded][Vectors * lanes], times a query's unit
  std::int32_t* weights_;            ///< [n / 2][Vectors * lanes]: a slot's beside the next one's
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_MANY_WHOLE_INL
