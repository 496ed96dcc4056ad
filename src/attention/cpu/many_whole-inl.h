// Products of many-inl.h in 16-bit whole numbers: one instruction multiplies two pairs of them and adds both products
// in each 32-bit lane, twice as many products as of f32. For x86, where neighbours make a pair. Included once for each
// instruction set.
//
// No sum leaves 32 bits, however large the numbers were:
//   - a query is a multiple of a unit that makes it 32,767 long, a slot's key of one that makes its largest value
//     65,000 / sqrt(head_dim) and so its length at most 65,000; a score is at most the product of the two
//     (Cauchy-Schwarz);
//   - a slot's largest value is 32,767 of its units; a block's weights times these units are at most 32,700 of theirs,
//     and together 65,400.
// What rounding adds to lengths and sums fits, too. docs/decisions.md, "Whole-number tiles" says what it costs.

// clang-format off
#if defined(COPPICE_MANY_WHOLE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_MANY_WHOLE_INL
#undef COPPICE_MANY_WHOLE_INL
#else
#define COPPICE_MANY_WHOLE_INL
#endif
// clang-format on

#include <algorithm>
#include <cmath>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/many-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr float kQueryLength = 32767.0F, kKeyLength = 65000.0F, kMostWeight = 32700.0F;

/// sum + the products of both halves of a and b, in each lane. V: of 32-bit numbers; a and b are pairs of 16-bit ones.
template <class V>
HWY_INLINE V add_pairs(V sum, V a, V b) {
  const hn::DFromV<V> d;
  const hn::Repartition<std::int16_t, decltype(d)> halves;
  V unused = hn::Zero(d);  // on x86
  add_products(halves, hn::BitCast(halves, a), hn::BitCast(halves, b), sum, unused);
  return sum;
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
        weights_(scratch.weight_pairs()) {}

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

  template <int Vectors, class D>
  HWY_INLINE void score(D d, int n, int at, float* scores) const {
    const hn::RebindToSigned<D> di;
    using V = hn::Vec<decltype(di)>;
    const int lanes = static_cast<int>(hn::Lanes(d)), pairs = head_dim_ / 2;
    hn::Vec<D> units[Vectors];
    for (int v = 0; v < Vectors; ++v) units[v] = hn::Load(d, query_units_ + at + v * lanes);
    for (int key = 0; key < n; key += kMany) {
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
          for (int v = 0; v < Vectors; ++v) sums[k][v] = add_pairs(sums[k][v], value, query[v]);
        }
      }
      for (int k = 0; k < kMany; ++k) {
        const auto unit = hn::Set(d, key_units_[key + k]);
        for (int v = 0; v < Vectors; ++v) {
          const auto score = hn::Mul(hn::Mul(hn::ConvertTo(d, sums[k][v]), unit), units[v]);
          hn::Store(score, d, scores + ((key + k) * Vectors + v) * lanes);
        }
      }
    }
  }

  /// Weights times their slots' units, as multiples of a unit of their own in this block.
  template <int Vectors, class D>
  HWY_INLINE void weigh(D d, OnlineSoftmax<D>& softmax, int n, int v, float* scores) {
    const hn::RebindToSigned<D> di;
    const int lanes = static_cast<int>(hn::Lanes(d)), step = Vectors * lanes;
    float* score = scores + v * lanes;
    auto sum = hn::Zero(d), largest = hn::Zero(d);
    for (int k = 0; k < n; ++k) {
      const auto weight = hn::Mul(softmax.weight(hn::Load(d, score + k * step)), hn::Set(d, value_units_[k]));
      hn::Store(weight, d, score + k * step);
      sum = hn::Add(sum, weight);
      largest = hn::Max(largest, weight);
    }
    const auto bound = hn::Max(largest, hn::Mul(sum, hn::Set(d, 0.5F)));
    const auto some = hn::Gt(bound, hn::Set(d, 1e-30F));  // less is nothing, and would overflow
    const auto inverse = hn::IfThenElseZero(some, hn::Div(hn::Set(d, kMostWeight), bound));
    hn::Store(hn::Mul(bound, hn::Set(d, 1.0F / kMostWeight)), d, weight_units_ + v * lanes);
    std::int32_t* weights = weights_ + v * lanes;
    for (int k = 0; k < n; k += 2) {
      const auto one = whole(d, hn::Load(d, score + k * step), inverse);
      const auto other = k + 1 < n ? whole(d, hn::Load(d, score + (k + 1) * step), inverse) : hn::Zero(di);
      hn::Store(pair(one, other), di, weights + k / 2 * step);
    }
  }

  template <int Vectors, class D>
  HWY_INLINE void add_values(D d, int n, int first, const float* /*scores*/, const float* rescale, float* out) const {
    const hn::RebindToSigned<D> di;
    using V = hn::Vec<decltype(di)>;
    const int lanes = static_cast<int>(hn::Lanes(d));
    V acc[kMany][Vectors];
    for (auto& i : acc) {
      for (V& v : i) v = hn::Zero(di);
    }
    const std::int32_t* values = values_ + first;
    const std::int32_t* weights = weights_;
    for (int k = 0; k < n; k += 2, values += head_dim_, weights += Vectors * lanes) {
      V p[Vectors];
      for (int v = 0; v < Vectors; ++v) p[v] = hn::Load(di, weights + v * lanes);
      for (int i = 0; i < kMany; ++i) {
        const V value = hn::Set(di, values[i]);
        for (int v = 0; v < Vectors; ++v) acc[i][v] = add_pairs(acc[i][v], value, p[v]);
      }
    }
    for (int i = 0; i < kMany; ++i) {
      for (int v = 0; v < Vectors; ++v) {
        float* to = out + i * stride_ + v * lanes;
        const auto before = hn::Mul(hn::Load(d, to), hn::Load(d, rescale + v * lanes));
        hn::Store(hn::MulAdd(hn::ConvertTo(d, acc[i][v]), hn::Load(d, weight_units_ + v * lanes), before), d, to);
      }
    }
  }

 private:
  /// Units that make the rows' largest values `most`, and what values are to be multiplied by; those behind the last
  /// row are any.
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
    const CodeTag d16;
    const hn::Rebind<hwy::float16_t, hn::FixedTag<float, kSlots>> half;
    hn::Vec<CodeTag> bits[kSlots];
    for (auto& s : bits) s = hn::Zero(d16);
    for (int i = 0; i < dim; i += static_cast<int>(hn::Lanes(d16))) {
      for (int s = 0; s < kSlots; ++s) {
        const auto x = hn::LoadU(d16, reinterpret_cast<const std::int16_t*>(row[s]) + i);
        bits[s] = hn::Max(bits[s], hn::And(x, hn::Set(d16, 0x7FFF)));
      }
    }
    const auto max = [](auto x, auto y) HWY_ATTR { return hn::Max(x, y); };
    const auto largest = fold_four(d16, max, bits[0], bits[1], bits[2], bits[3]);
    return hn::PromoteTo(hn::FixedTag<float, kSlots>(), hn::BitCast(half, largest));
  }

  int head_dim_, stride_;
  std::int32_t* queries_;            ///< [head_dim / 2][stride]
  float* query_units_;               ///< [stride]
  std::int32_t* keys_;               ///< [n, padded][head_dim / 2]
  std::int32_t* values_;             ///< [n / 2][head_dim]: a slot's beside the next one's
  float *key_units_, *value_units_;  ///< [n, padded]
  std::int32_t* weights_;            ///< [n / 2][Vectors * lanes]: a slot's beside the next one's
  HWY_ALIGN float weight_units_[kManyVectors * TileScratch::kMaxLanes];
};

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_MANY_WHOLE_INL
