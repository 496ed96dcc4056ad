// A tile of many queries: vectors run across queries. A head's keys and values of a block are converted to f32 once,
// then every key value is broadcast against vectors of queries: scores, softmax and weighted values are all vertical.
// Bound by multiply-adds. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_TILE_MANY_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_TILE_MANY_INL
#undef COPPICE_TILE_MANY_INL
#else
#define COPPICE_TILE_MANY_INL
#endif
// clang-format on

#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/tile_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Registers decide how many keys (or values) meet how many vectors of queries at a time.
constexpr int kMany = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 8 : 4;
constexpr int kManyVectors = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM ? 3 : 2;

static_assert(TileScratch::kKeysAtOnce % kMany == 0);

/// Whether the last columns may be half a vector.
constexpr bool kHalfVectors = hn::MaxLanes(hn::ScalableTag<float>()) == 16;

/// One key head of a tile. Queries are columns: element [i][q] lies at i * stride + q.
struct ManyHead {
  int head_dim;
  int columns;                  ///< queries, padded to what is computed
  int stride;                   ///< and to whole vectors
  const float* queries;         ///< [head_dim][stride], scaled
  float* acc;                   ///< [head_dim][stride]
  float* max;                   ///< [stride]
  float* sum;                   ///< [stride]
  const std::int32_t *lo, *hi;  ///< [stride] visible slots, counted from the run's first
};

/// A block's slots [0, n) as f32; keys are padded with zeros to a multiple of kMany slots.
struct ManyBlock {
  const float* keys;    ///< [n, padded][head_dim]
  const float* values;  ///< [n][head_dim]
  int n;
  int slot0;      ///< the first one's place in the run
  float* scores;  ///< [n, padded][Vectors * lanes]
};

template <int Vectors, class D>
HWY_INLINE void many_scores(D d, const ManyHead& h, const ManyBlock& b, int at) {
  using V = hn::Vec<D>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int key = 0; key < b.n; key += kMany) {
    V sums[kMany][Vectors];
    for (auto& k : sums) {
      for (V& s : k) s = hn::Zero(d);
    }
    const float* keys = b.keys + std::ptrdiff_t{key} * h.head_dim;
    const float* queries = h.queries + at;
    for (int i = 0; i < h.head_dim; ++i, queries += h.stride) {
      V query[Vectors];
      for (int v = 0; v < Vectors; ++v) query[v] = hn::Load(d, queries + v * lanes);
      for (int k = 0; k < kMany; ++k) {
        const V value = hn::Set(d, keys[k * h.head_dim + i]);
        for (int v = 0; v < Vectors; ++v) sums[k][v] = hn::MulAdd(value, query[v], sums[k][v]);
      }
    }
    for (int k = 0; k < kMany; ++k) {
      for (int v = 0; v < Vectors; ++v) hn::Store(sums[k][v], d, b.scores + ((key + k) * Vectors + v) * lanes);
    }
  }
}

/// Scores become weights; returns by what the states so far must be scaled.
template <int Vectors, class D>
HWY_INLINE void many_softmax(D d, const ManyHead& h, const ManyBlock& b, int at, bool masked, float* rescale) {
  const hn::RebindToSigned<D> di;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int v = 0; v < Vectors; ++v) {
    const int column = at + v * lanes;
    float* scores = b.scores + v * lanes;
    const auto old_max = hn::Load(d, h.max + column);
    auto max = old_max;
    if (masked) {
      const auto lo = hn::Load(di, h.lo + column), hi = hn::Load(di, h.hi + column);
      for (int k = 0; k < b.n; ++k) {
        const auto slot = hn::Set(di, b.slot0 + k);
        const auto visible = hn::AndNot(hn::Lt(slot, lo), hn::Lt(slot, hi));
        const auto s = hn::IfThenElse(hn::RebindMask(d, visible), hn::Load(d, scores + k * Vectors * lanes), none);
        hn::Store(s, d, scores + k * Vectors * lanes);
        max = hn::Max(max, s);
      }
    } else {
      for (int k = 0; k < b.n; ++k) max = hn::Max(max, hn::Load(d, scores + k * Vectors * lanes));
    }
    // A query that has seen nothing yet has max -inf: -inf minus -inf is NaN, whose exponential here is 0.
    auto total = hn::Zero(d);
    for (int k = 0; k < b.n; ++k) {
      const auto p = exp_of(d, hn::Sub(hn::Load(d, scores + k * Vectors * lanes), max));
      hn::Store(p, d, scores + k * Vectors * lanes);
      total = hn::Add(total, p);
    }
    // Exactly 1 where the maximum stays: an error of one last bit at every block would add up over a long prefix.
    const auto scale = hn::IfThenElse(hn::Eq(old_max, max), hn::Set(d, 1.0F), exp_of(d, hn::Sub(old_max, max)));
    hn::Store(scale, d, rescale + v * lanes);
    hn::Store(max, d, h.max + column);
    hn::Store(hn::MulAdd(hn::Load(d, h.sum + column), scale, total), d, h.sum + column);
  }
}

template <int Vectors, int Values, class D>
HWY_INLINE void many_values_of(D d, const ManyHead& h, const ManyBlock& b, int at, int first, const float* rescale) {
  using V = hn::Vec<D>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  V acc[Values][Vectors];
  float* out = h.acc + std::ptrdiff_t{first} * h.stride + at;
  for (int i = 0; i < Values; ++i) {
    for (int v = 0; v < Vectors; ++v) {
      acc[i][v] = hn::Mul(hn::Load(d, out + i * h.stride + v * lanes), hn::Load(d, rescale + v * lanes));
    }
  }
  const float* values = b.values + first;
  const float* weights = b.scores;
  for (int k = 0; k < b.n; ++k, values += h.head_dim, weights += Vectors * lanes) {
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

/// A block for queries [at, at + Vectors * lanes).
template <int Vectors, class D>
void many_block(D d, const ManyHead& h, const ManyBlock& b, int at) {
  const int n = Vectors * static_cast<int>(hn::Lanes(d));
  const auto [lo_min, lo_max] = std::minmax_element(h.lo + at, h.lo + at + n);
  const auto [hi_min, hi_max] = std::minmax_element(h.hi + at, h.hi + at + n);
  if (*hi_max <= b.slot0 || *lo_min >= b.slot0 + b.n) return;  // a chunk's later keys
  const bool masked = *lo_max > b.slot0 || *hi_min < b.slot0 + b.n;
  HWY_ALIGN float rescale[3 * TileScratch::kMaxLanes];
  many_scores<Vectors>(d, h, b, at);
  many_softmax<Vectors>(d, h, b, at, masked, rescale);
  for (int i = 0; i < h.head_dim; i += kMany) many_values_of<Vectors, kMany>(d, h, b, at, i, rescale);
}

/// A block for all columns. Where vectors have 16 lanes, the last may be half of one: some processors compute two halves in
/// the time of a whole one, and none takes longer.
HWY_INLINE void many_columns(const ManyHead& h, const ManyBlock& b) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int q = 0;
  for (; q + kManyVectors * lanes <= h.columns; q += kManyVectors * lanes) many_block<kManyVectors>(d, h, b, q);
  if constexpr (kManyVectors > 2) {
    if (q + 2 * lanes <= h.columns) many_block<2>(d, h, b, q), q += 2 * lanes;
  }
  if (q + lanes <= h.columns) many_block<1>(d, h, b, q), q += lanes;
  if constexpr (kHalfVectors) {
    if (q < h.columns) many_block<1>(hn::Half<decltype(d)>(), h, b, q);
  }
}

/// Slots [begin, end) of a head as f32, while those of the block that comes next are fetched:
/// [end - begin, padded to `pad` rows with zeros][head_dim].
template <class Load>
HWY_INLINE void convert(const std::byte* head, const std::byte* next, std::size_t row_bytes, int head_dim, int begin,
                        int end, int pad, float* to) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int slot = begin; slot < end; ++slot, to += head_dim) {
    if (next) prefetch<Load>(next, row_bytes, slot, head_dim);
    const std::byte* row = head + row_bytes * static_cast<std::size_t>(slot);
    if constexpr (kScaled<Load>) {
      const auto scale = hn::Set(d, scale_of(row));
      for (int i = 0; i < head_dim; i += lanes) hn::Store(hn::Mul(Load::load(d, row, i), scale), d, to + i);
    } else {
      for (int i = 0; i < head_dim; i += lanes) hn::Store(Load::load(d, row, i), d, to + i);
    }
  }
  const int rows = (end - begin + pad - 1) / pad * pad - (end - begin);
  std::fill_n(to, std::ptrdiff_t{rows} * head_dim, 0.0F);
}

/// Columns of one key head: queries transposed and scaled, empty states.
template <class Load>
HWY_INLINE ManyHead many_head(const TileInput& t, TileScratch& scratch, int kv_head, int stride) {
  const HeadShape& h = t.heads;
  const int per_kv = h.heads_per_kv(), n = static_cast<int>(t.rows.size()) * per_kv;
  for (int q = 0; q < n; ++q) {
    const float* from = t.q + (std::ptrdiff_t{t.rows[static_cast<std::size_t>(q / per_kv)].row} * h.n_head +
                               kv_head * per_kv + q % per_kv) *
                                  h.head_dim;
    float* query = scratch.keys();  // free until the first block
    take_query<Load>(from, h.scale, h.head_dim, query);
    for (int i = 0; i < h.head_dim; ++i) scratch.queries()[std::ptrdiff_t{i} * stride + q] = query[i];
  }
  for (int i = 0; i < h.head_dim; ++i) {
    std::fill(scratch.queries() + std::ptrdiff_t{i} * stride + n, scratch.queries() + std::ptrdiff_t{i + 1} * stride,
              0.0F);
  }
  std::fill_n(scratch.acc(), std::ptrdiff_t{h.head_dim} * stride, 0.0F);
  std::fill_n(scratch.max(), stride, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum(), stride, 0.0F);
  constexpr int kUnit = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>())) / (kHalfVectors ? 2 : 1);
  const int columns = (n + kUnit - 1) / kUnit * kUnit;
  return {h.head_dim,    columns,       stride,       scratch.queries(), scratch.acc(),
          scratch.max(), scratch.sum(), scratch.lo(), scratch.hi()};
}

inline void store_states(const TileInput& t, const ManyHead& head, int kv_head) {
  const int per_kv = t.heads.heads_per_kv(), dim = head.head_dim, n = static_cast<int>(t.rows.size()) * per_kv;
  for (int q = 0; q < n; ++q) {
    float* to = t.states + (std::ptrdiff_t{q / per_kv} * t.heads.n_head + kv_head * per_kv + q % per_kv) * (dim + 2);
    for (int i = 0; i < dim; ++i) to[i] = head.acc[std::ptrdiff_t{i} * head.stride + q];
    to[dim] = head.max[q];
    to[dim + 1] = head.sum[q];
  }
}

template <class Load>
std::uint64_t attend_many(const TileInput& t, TileScratch& scratch) {
  const hn::ScalableTag<float> d;
  const HeadShape& h = t.heads;
  const int lanes = static_cast<int>(hn::Lanes(d)), per_kv = h.heads_per_kv();
  const int n_queries = static_cast<int>(t.rows.size()) * per_kv;
  const int stride = (n_queries + lanes - 1) / lanes * lanes;
  for (int q = 0; q < stride; ++q) {  // padding sees what the last query sees
    const RowInterval& row = t.rows[static_cast<std::size_t>(std::min(q, n_queries - 1) / per_kv)];
    scratch.lo()[q] = row.lo;
    scratch.hi()[q] = row.hi;
  }
  const std::int32_t lo = *std::min_element(scratch.lo(), scratch.lo() + stride);
  const std::int32_t hi = *std::max_element(scratch.hi(), scratch.hi() + stride);
  const std::size_t bytes_per_head = head_bytes(Load::kFormat, h.head_dim);
  std::uint64_t bytes = 0;
  for (int k = 0; k < h.n_kv_head; ++k) {
    const ManyHead head = many_head<Load>(t, scratch, k, stride);
    for (std::size_t i = 0; i < t.blocks.size(); ++i) {
      const int slot0 = t.run_offset + static_cast<int>(i) * t.pool.block_size;
      const int begin = std::max(lo - slot0, 0), end = std::min(hi - slot0, t.pool.block_size);
      if (begin >= end) continue;
      const std::size_t at =
          t.pool.block_bytes() * static_cast<std::size_t>(t.blocks[i]) + bytes_per_head * static_cast<std::size_t>(k);
      const bool more = i + 1 < t.blocks.size();
      const std::size_t next = more ? t.pool.block_bytes() * static_cast<std::size_t>(t.blocks[i + 1]) +
                                          bytes_per_head * static_cast<std::size_t>(k)
                                    : 0;
      convert<Load>(t.pool.keys + at, more ? t.pool.keys + next : nullptr, t.pool.row_bytes, h.head_dim, begin, end,
                    kMany, scratch.keys());
      convert<Load>(t.pool.values + at, more ? t.pool.values + next : nullptr, t.pool.row_bytes, h.head_dim, begin, end,
                    1, scratch.values());
      bytes += 2 * bytes_per_head * static_cast<std::size_t>(end - begin);
      const ManyBlock block{scratch.keys(), scratch.values(), end - begin, slot0 + begin, scratch.scores()};
      many_columns(head, block);
    }
    store_states(t, head, k);
  }
  return bytes;
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_TILE_MANY_INL
