// A tile of few queries: vectors run along the head's values. Each key is loaded once for up to four queries, and
// converted, or multiplied as it is where it is a code (few_codes-inl.h); the pool is read block by block, all heads, in the
// order in which it lies in memory. What bounds it: docs/adr/0008-tree-kernel.md. Compiled for each instruction set.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention/cpu/tile_loops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile_few.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include <hwy/highway.h>

#include "attention/cpu/few_block-inl.h"
#include "attention/cpu/few_codes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Load, int Group>
HWY_INLINE void few_scores(const FewBlock<Load>& b) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int slot = b.begin / kSlots * kSlots; slot < b.end; slot += kSlots) {
    V sums[Group][kSlots];
    for (auto& q : sums) {
      for (V& s : q) s = hn::Zero(d);
    }
    const std::byte* row = b.keys + b.row_bytes * static_cast<std::size_t>(slot);
    if (b.ahead_of_keys) {
      for (int s = 0; s < kSlots; ++s) prefetch<Load>(b.ahead_of_keys, b.row_bytes, slot + s, b.head_dim);
    }
    for (int i = 0; i < b.head_dim; i += lanes) {
      V key[kSlots];
      for (int s = 0; s < kSlots; ++s) key[s] = Load::load(d, row + b.row_bytes * static_cast<std::size_t>(s), i);
      for (int q = 0; q < Group; ++q) {
        const V query = hn::Load(d, b.queries + q * b.head_dim + i);
        for (int s = 0; s < kSlots; ++s) sums[q][s] = hn::MulAdd(query, key[s], sums[q][s]);
      }
    }
    for (int q = 0; q < Group; ++q) {
      hn::Store(sum_four(d, sums[q][0], sums[q][1], sums[q][2], sums[q][3]), hn::FixedTag<float, kSlots>(),
                b.scores + q * b.stride + slot);
    }
  }
}

/// Scores of one query become weights; its state is rescaled to the new maximum. Slots outside [lo, hi) weigh nothing.
template <class Load>
HWY_INLINE void few_softmax(const FewBlock<Load>& b, int q, int lo, int hi) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  float* scores = b.scores + q * b.stride;
  const float none = hwy::LowestValue<float>();
  for (int s = b.begin / kSlots * kSlots; s < lo; ++s) scores[s] = none;
  const int first = b.begin / lanes * lanes;
  for (int s = first; s < b.begin / kSlots * kSlots; ++s) scores[s] = none;
  const int end = (b.end + lanes - 1) / lanes * lanes;
  for (int s = hi; s < end; ++s) scores[s] = none;
  if (lo >= hi) {
    for (int s = first; s < end; ++s) scores[s] = 0.0F;
    return;
  }
  auto best = hn::Set(d, none);
  for (int s = first; s < end; s += lanes) best = larger(best, hn::Load(d, scores + s));
  float max = b.max[q];
  if (!hn::AllTrue(d, hn::Le(best, hn::Set(d, max)))) max = hn::GetLane(hn::MaxOfLanes(d, best));
  auto total = hn::Zero(d);
  for (int s = first; s < end; s += lanes) {
    const auto p = exp_of(d, hn::Sub(hn::Load(d, scores + s), hn::Set(d, max)));
    hn::Store(p, d, scores + s);
    total = hn::Add(total, p);
  }
  const float old = b.max[q] == max ? 1.0F : std::exp(b.max[q] - max);
  b.sum[q] = b.sum[q] * old + hn::GetLane(hn::SumOfLanes(d, total));
  b.max[q] = max;
  if (old == 1.0F) return;
  for (int i = 0; i < b.head_dim; i += lanes) {
    hn::Store(hn::Mul(hn::Load(d, b.acc + q * b.head_dim + i), hn::Set(d, old)), d, b.acc + q * b.head_dim + i);
  }
}

template <class Load, int Group, int Vectors>
HWY_INLINE void few_values_of(const FewBlock<Load>& b, int at) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const int lanes = static_cast<int>(hn::Lanes(d));
  V acc[Group][Vectors];
  for (int q = 0; q < Group; ++q) {
    for (int v = 0; v < Vectors; ++v) acc[q][v] = hn::Load(d, b.acc + q * b.head_dim + at + v * lanes);
  }
  for (int slot = b.begin; slot < b.end; ++slot) {
    const std::byte* row = b.values + b.row_bytes * static_cast<std::size_t>(slot);
    if (at == 0 && b.ahead_of_values) prefetch<Load>(b.ahead_of_values, b.row_bytes, slot, b.head_dim);
    V value[Vectors];
    for (int v = 0; v < Vectors; ++v) value[v] = Load::load(d, row, at + v * lanes);
    for (int q = 0; q < Group; ++q) {
      const V p = hn::Set(d, b.scores[q * b.stride + slot]);
      for (int v = 0; v < Vectors; ++v) acc[q][v] = hn::MulAdd(p, value[v], acc[q][v]);
    }
  }
  for (int q = 0; q < Group; ++q) {
    for (int v = 0; v < Vectors; ++v) hn::Store(acc[q][v], d, b.acc + q * b.head_dim + at + v * lanes);
  }
}

template <class Load, int Group>
HWY_INLINE void few_values(const FewBlock<Load>& b) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + 4 * lanes <= b.head_dim; i += 4 * lanes) few_values_of<Load, Group, 4>(b, i);
  for (; i < b.head_dim; i += lanes) few_values_of<Load, Group, 1>(b, i);
}

template <class Load, int Group>
HWY_INLINE void few_softmax_of_group(const FewBlock<Load>& b, const RowInterval* rows, int first_query,
                                     int heads_per_kv, int slot0) {
  for (int q = 0; q < Group; ++q) {
    const RowInterval& row = rows[(first_query + q) / heads_per_kv];
    few_softmax(b, q, std::clamp(row.lo - slot0, b.begin, b.end), std::clamp(row.hi - slot0, b.begin, b.end));
  }
}

// The block is a copy: nothing that is stored can change it, so its fields stay in registers.

template <class Load, int Group, class D16>
void few_group_of_codes(D16 d16, const FewBlock<Load> b, const RowInterval* rows, int first_query, int heads_per_kv,
                        int slot0) {
  const CodeScales keys(b.keys, b.row_bytes, b.begin, b.end), values(b.values, b.row_bytes, b.begin, b.end);
  code_scores<Load, Group>(d16, b);
  code_scale<Load, Group>(b, keys);
  few_softmax_of_group<Load, Group>(b, rows, first_query, heads_per_kv, slot0);
  code_values<Load, Group>(d16, b, values);
}

template <class Load, int Group>
void few_group(const FewBlock<Load> b, const RowInterval* rows, int first_query, int heads_per_kv, int slot0) {
  if constexpr (kScaled<Load>) {
    with_code_vectors(b.head_dim, [&](auto d16) HWY_ATTR {
      few_group_of_codes<Load, Group>(d16, b, rows, first_query, heads_per_kv, slot0);
    });
  } else {
    few_scores<Load, Group>(b);
    few_softmax_of_group<Load, Group>(b, rows, first_query, heads_per_kv, slot0);
    few_values<Load, Group>(b);
  }
}

/// Queries, kv head by kv head: [n_kv_head][row, head of the group][dim]; states are empty.
template <class Load>
void take_queries(const TileInput& t, TileScratch& scratch) {
  const HeadShape& h = t.heads;
  const int per_kv = h.heads_per_kv(), n_queries = static_cast<int>(t.rows.size()) * per_kv, dim = h.head_dim;
  for (int k = 0; k < h.n_kv_head; ++k) {
    for (int q = 0; q < n_queries; ++q) {
      const float* from =
          t.q +
          (std::ptrdiff_t{t.rows[static_cast<std::size_t>(q / per_kv)].row} * h.n_head + k * per_kv + q % per_kv) * dim;
      const std::ptrdiff_t state = std::ptrdiff_t{k} * n_queries + q;
      float* query = scratch.queries() + state * dim;
      take_query<Load>(from, h.scale, dim, query);
      if constexpr (kScaled<Load>) {
        scratch.units()[state] = whole_query(query, dim, scratch.whole_queries() + state * dim);
      }
    }
  }
  const auto n_states = static_cast<std::size_t>(h.n_kv_head) * static_cast<std::size_t>(n_queries);
  std::fill_n(scratch.acc(), n_states * static_cast<std::size_t>(dim), 0.0F);
  std::fill_n(scratch.max(), n_states, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum(), n_states, 0.0F);
}

/// States in the order of the tile's rows' heads.
template <class Load>
void store_few(const TileInput& t, TileScratch& scratch) {
  const HeadShape& h = t.heads;
  const int per_kv = h.heads_per_kv(), n_queries = static_cast<int>(t.rows.size()) * per_kv, dim = h.head_dim;
  for (int k = 0; k < h.n_kv_head; ++k) {
    for (int q = 0; q < n_queries; ++q) {
      const std::ptrdiff_t state = std::ptrdiff_t{k} * n_queries + q;
      float* to = t.states + (std::ptrdiff_t{q / per_kv} * h.n_head + k * per_kv + q % per_kv) * (dim + 2);
      const float* acc = scratch.acc() + state * dim;
      if constexpr (kScaled<Load>) {
        put_in_order(acc, dim, to);
      } else {
        std::copy_n(acc, dim, to);
      }
      to[dim] = scratch.max()[state];
      to[dim + 1] = scratch.sum()[state];
    }
  }
}

/// A tile's keys and values in the order in which they are gone through: of each block, of each head, keys, then values.
template <class Load>
class FewStretches {
 public:
  explicit FewStretches(const TileInput& t)
      : t_(t),
        head_bytes_(head_bytes(Load::kFormat, t.heads.head_dim)),
        ahead_(head_bytes_ * static_cast<std::size_t>(t.pool.block_size) < kFarEnough ? 3 : 1) {}

  /// A block's keys of a head; the stretch behind them has the values.
  std::size_t keys_of(std::size_t block, int head) const {
    return 2 * (block * static_cast<std::size_t>(t_.heads.n_kv_head) + static_cast<std::size_t>(head));
  }
  /// The head in the block's first slot; nullptr behind the last block.
  const std::byte* at(std::size_t stretch) const {
    const auto heads = static_cast<std::size_t>(t_.heads.n_kv_head);
    const std::size_t block = stretch / 2 / heads, head = stretch / 2 % heads;
    if (block >= t_.blocks.size()) return nullptr;
    const std::byte* pool = stretch % 2 == 0 ? t_.pool.keys : t_.pool.values;
    return pool + t_.pool.block_bytes() * static_cast<std::size_t>(t_.blocks[block]) + head_bytes_ * head;
  }
  /// What is fetched meanwhile. An odd number of stretches ahead, so that keys are fetched while values are multiplied; and
  /// no further than it takes to arrive (ADR 0008).
  const std::byte* ahead_of(std::size_t stretch) const { return at(stretch + ahead_); }

 private:
  static constexpr std::size_t kFarEnough = 8192;

  const TileInput& t_;
  std::size_t head_bytes_, ahead_;
};

template <class Load>
std::uint64_t attend_few(const TileInput& t, TileScratch& scratch) {
  const HeadShape& h = t.heads;
  const int per_kv = h.heads_per_kv(), n_rows = static_cast<int>(t.rows.size()), n_queries = n_rows * per_kv;
  const int dim = h.head_dim, block_size = t.pool.block_size;
  take_queries<Load>(t, scratch);
  std::int32_t lo = std::numeric_limits<std::int32_t>::max(), hi = 0;
  for (const RowInterval& r : t.rows) lo = std::min(lo, r.lo), hi = std::max(hi, r.hi);
  const std::size_t bytes_per_head = head_bytes(Load::kFormat, dim);
  const int stride = (block_size + TileScratch::kMaxLanes - 1) / TileScratch::kMaxLanes * TileScratch::kMaxLanes;
  const FewStretches<Load> stretches(t);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < t.blocks.size(); ++i) {
    const int slot0 = t.run_offset + static_cast<int>(i) * block_size;
    const int begin = std::max(lo - slot0, 0), end = std::min(hi - slot0, block_size);
    if (begin >= end) continue;
    for (int k = 0; k < h.n_kv_head; ++k) {
      const std::size_t keys = stretches.keys_of(i, k), values = keys + 1;
      for (int q = 0; q < n_queries;) {
        const std::ptrdiff_t state = std::ptrdiff_t{k} * n_queries + q;
        const FewQuery<Load>* queries = nullptr;
        if constexpr (kScaled<Load>) {
          queries = scratch.whole_queries() + state * dim;
        } else {
          queries = scratch.queries() + state * dim;
        }
        const FewBlock<Load> b{.keys = stretches.at(keys),
                               .values = stretches.at(values),
                               .ahead_of_keys = q == 0 ? stretches.ahead_of(keys) : nullptr,
                               .ahead_of_values = q == 0 ? stretches.ahead_of(values) : nullptr,
                               .row_bytes = t.pool.row_bytes,
                               .head_dim = dim,
                               .begin = begin,
                               .end = end,
                               .queries = queries,
                               .units = scratch.units() + state,
                               .acc = scratch.acc() + state * dim,
                               .max = scratch.max() + state,
                               .sum = scratch.sum() + state,
                               .scores = scratch.scores(),
                               .stride = stride};
        const int left = n_queries - q;
        if (left >= 4) {
          few_group<Load, 4>(b, t.rows.data(), q, per_kv, slot0), q += 4;
        } else if (left == 3) {
          few_group<Load, 3>(b, t.rows.data(), q, per_kv, slot0), q += 3;
        } else if (left == 2) {
          few_group<Load, 2>(b, t.rows.data(), q, per_kv, slot0), q += 2;
        } else {
          few_group<Load, 1>(b, t.rows.data(), q, per_kv, slot0), q += 1;
        }
        bytes += 2 * bytes_per_head * static_cast<std::size_t>(end - begin);
      }
    }
  }
  store_few<Load>(t, scratch);
  return bytes;
}

std::uint64_t few_of_format(const TileInput& tile, TileScratch& scratch) {
  return with_loader(tile.pool.format, [&](auto load) HWY_ATTR { return attend_few<decltype(load)>(tile, scratch); });
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::attention {

HWY_EXPORT(few_of_format);

std::uint64_t attend_few(const TileInput& tile, TileScratch& scratch) {
  return HWY_DYNAMIC_DISPATCH(few_of_format)(tile, scratch);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
