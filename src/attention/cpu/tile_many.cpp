// A tile of many queries: vectors run across queries. A head's keys and values of a block are converted once, then every
// element is broadcast against vectors of queries: scores, softmax and weighted values are all vertical. Bound by
// multiply-adds. Compiled for each instruction set.
#include <algorithm>
#include <limits>

#include "attention/cpu/tile_loops.h"

// Sums of products of whole numbers come with this target.
#define HWY_WANT_AVX3_DL 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile_many.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include <hwy/highway.h>

#include "simd/vnni_target-inl.h"
// After it.
#include "attention/cpu/many_float-inl.h"
#include "attention/cpu/many_whole-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// What multiplies. A whole number's product takes half as long as an f32 one's on x86, and as long on ARM.
#if HWY_TARGET <= HWY_SSSE3 && HWY_ARCH_X86
using Products = WholeProducts;
#else
using Products = FloatProducts;
#endif

/// A block for columns [at, at + Vectors * lanes).
template <int Vectors, class D>
void many_block(D d, Products& products, const ManyHead& h, const ManyBlock& b, int at) {
  const int n = Vectors * static_cast<int>(hn::Lanes(d));
  const auto [lo_min, lo_max] = std::minmax_element(h.lo + at, h.lo + at + n);
  const auto [hi_min, hi_max] = std::minmax_element(h.hi + at, h.hi + at + n);
  if (*hi_max <= b.slot0 || *lo_min >= b.slot0 + b.n) return;  // a chunk's later keys
  const bool masked = *lo_max > b.slot0 || *hi_min < b.slot0 + b.n;
  products.attend<Vectors>(d, h, b, at, masked);
}

/// A block for all columns. Where vectors have 16 lanes, the last may be half of one: some processors compute two halves in
/// the time of a whole one, and none takes longer.
HWY_INLINE void many_columns(Products& products, const ManyHead& h, const ManyBlock& b) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int q = 0;
  for (; q + kManyVectors * lanes <= h.columns; q += kManyVectors * lanes) {
    many_block<kManyVectors>(d, products, h, b, q);
  }
  if constexpr (kManyVectors > 2) {
    if (q + 2 * lanes <= h.columns) many_block<2>(d, products, h, b, q), q += 2 * lanes;
  }
  if (q + lanes <= h.columns) many_block<1>(d, products, h, b, q), q += lanes;
  if constexpr (kHalfVectors) {
    if (q < h.columns) many_block<1>(hn::Half<decltype(d)>(), products, h, b, q);
  }
}

/// Columns of one key head: its queries scaled, and empty states.
template <class Load>
HWY_INLINE ManyHead many_head(const TileInput& t, TileScratch& scratch, Products& products, int kv_head, int stride) {
  const HeadShape& h = t.heads;
  const int per_kv = h.heads_per_kv(), n = static_cast<int>(t.rows.size()) * per_kv;
  for (int q = 0; q < n; ++q) {
    const float* from = t.q + (std::ptrdiff_t{t.rows[static_cast<std::size_t>(q / per_kv)].row} * h.n_head +
                               kv_head * per_kv + q % per_kv) *
                                  h.head_dim;
    float* query = scratch.acc();  // free until now
    take_query<Load>(from, h.scale, h.head_dim, query);
    products.set_query(q, query);
  }
  for (int q = n; q < stride; ++q) products.set_query(q, nullptr);
  std::fill_n(scratch.acc(), std::ptrdiff_t{h.head_dim} * stride, 0.0F);
  std::fill_n(scratch.max(), stride, -std::numeric_limits<float>::infinity());
  std::fill_n(scratch.sum(), stride, 0.0F);
  constexpr int kUnit = static_cast<int>(hn::MaxLanes(hn::ScalableTag<float>())) / (kHalfVectors ? 2 : 1);
  const int columns = (n + kUnit - 1) / kUnit * kUnit;
  return {h.head_dim, columns, stride, scratch.acc(), scratch.max(), scratch.sum(), scratch.lo(), scratch.hi()};
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
  Products products(scratch, h.head_dim, stride);
  std::uint64_t bytes = 0;
  for (int k = 0; k < h.n_kv_head; ++k) {
    const ManyHead head = many_head<Load>(t, scratch, products, k, stride);
    for (std::size_t i = 0; i < t.blocks.size(); ++i) {
      const int slot0 = t.run_offset + static_cast<int>(i) * t.pool.block_size;
      const int begin = std::max(lo - slot0, 0), end = std::min(hi - slot0, t.pool.block_size);
      if (begin >= end) continue;
      const auto rows = [&](const std::byte* pool) HWY_ATTR {
        const auto first = [&](std::size_t block) HWY_ATTR {
          return pool + t.pool.block_bytes() * static_cast<std::size_t>(t.blocks[block]) +
                 bytes_per_head * static_cast<std::size_t>(k) + t.pool.row_bytes * static_cast<std::size_t>(begin);
        };
        return ManyRows{first(i), i + 1 < t.blocks.size() ? first(i + 1) : nullptr, t.pool.row_bytes};
      };
      products.set_block<Load>(end - begin, rows(t.pool.keys), rows(t.pool.values));
      bytes += 2 * bytes_per_head * static_cast<std::size_t>(end - begin);
      many_columns(products, head, {end - begin, slot0 + begin});
    }
    store_states(t, head, k);
  }
  return bytes;
}

std::uint64_t many_of_format(const TileInput& tile, TileScratch& scratch) {
  return with_loader(tile.pool.format, [&](auto load) HWY_ATTR { return attend_many<decltype(load)>(tile, scratch); });
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::attention {

HWY_EXPORT(many_of_format);

std::uint64_t attend_many(const TileInput& tile, TileScratch& scratch) {
  return HWY_DYNAMIC_DISPATCH(many_of_format)(tile, scratch);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
