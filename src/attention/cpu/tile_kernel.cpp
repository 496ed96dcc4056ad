#include "attention/cpu/tile_kernel.h"

#include <algorithm>
#include <cassert>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile_kernel.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include <hwy/highway.h>

#include "attention/cpu/rotate-inl.h"
#include "attention/cpu/tile_loops.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

/// Vectors across queries pay when most of their lanes are used; the figures are in docs/adr/0008-tree-kernel.md.
bool are_many(std::size_t queries) {
  return 4 * queries >= 3 * hn::Lanes(hn::ScalableTag<float>());
}

void merge(const HeadShape& heads, KvFormat format, const float* states, const std::int32_t* partials, int n,
           float* out) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d)), dim = heads.head_dim;
  const std::ptrdiff_t per_row = std::ptrdiff_t{heads.n_head} * (dim + 2);
  for (int h = 0; h < heads.n_head; ++h, out += dim) {
    const auto state = [&](int i) { return states + partials[i] * per_row + std::ptrdiff_t{h} * (dim + 2); };
    float max = -std::numeric_limits<float>::infinity(), sum = 0.0F;
    for (int i = 0; i < n; ++i) max = std::max(max, state(i)[dim]);
    for (int i = 0; i < dim; i += lanes) hn::StoreU(hn::Zero(d), d, out + i);
    for (int i = 0; i < n; ++i) {
      const float* s = state(i);
      if (s[dim + 1] == 0.0F) continue;
      const float weight = std::exp(s[dim] - max);
      sum += weight * s[dim + 1];
      for (int j = 0; j < dim; j += lanes) {
        hn::StoreU(hn::MulAdd(hn::Set(d, weight), hn::LoadU(d, s + j), hn::LoadU(d, out + j)), d, out + j);
      }
    }
    const auto scale = hn::Set(d, sum > 0.0F ? 1.0F / sum : 0.0F);
    for (int i = 0; i < dim; i += lanes) hn::StoreU(hn::Mul(scale, hn::LoadU(d, out + i)), d, out + i);
    if (is_rotated(format)) rotate_back(out, dim);
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::attention {

namespace {

HWY_EXPORT(are_many);
HWY_EXPORT(merge);

/// With AMX from so many queries on: it converts blocks once, where `few` reads them once for every four (ADR 0015).
constexpr std::size_t kAmxQueries = 9;

std::size_t padded(std::size_t n) {
  return (n + TileScratch::kMaxLanes - 1) / TileScratch::kMaxLanes * TileScratch::kMaxLanes;
}

}  // namespace

TileScratch::TileScratch(const HeadShape& heads, int block_size) {
  simd::choose_target();
  assert(heads.head_dim % kMaxLanes == 0 && block_size % kKeysAtOnce == 0 && block_size <= kMaxSlots);
  const auto dim = static_cast<std::size_t>(heads.head_dim), slots = static_cast<std::size_t>(block_size);
  // Many queries: one key head at a time. Few: all heads, fewer queries than lanes each.
  const std::size_t columns = std::max<std::size_t>(kMaxQueries, static_cast<std::size_t>(heads.n_kv_head) * kMaxLanes);
  queries_ = hwy::AllocateAligned<float>(columns * dim);
  whole_queries_ = hwy::AllocateAligned<std::int16_t>(columns * dim);
  units_ = hwy::AllocateAligned<float>(columns);
  acc_ = hwy::AllocateAligned<float>(columns * dim);
  max_ = hwy::AllocateAligned<float>(columns);
  sum_ = hwy::AllocateAligned<float>(columns);
  keys_ = hwy::AllocateAligned<float>(slots * dim);
  values_ = hwy::AllocateAligned<float>(slots * dim);
  scores_ = hwy::AllocateAligned<float>(padded(slots) * 4 * kMaxLanes);
  query_pairs_ = hwy::AllocateAligned<std::int32_t>(columns * dim / 2);
  key_pairs_ = hwy::AllocateAligned<std::int32_t>(slots * dim / 2);
  value_pairs_ = hwy::AllocateAligned<std::int32_t>(slots * dim / 2);
  key_units_ = hwy::AllocateAligned<float>(kMaxSlots);
  value_units_ = hwy::AllocateAligned<float>(kMaxSlots);
  weight_pairs_ = hwy::AllocateAligned<std::int32_t>(padded(slots) / 2 * 4 * kMaxLanes);
  lo_ = hwy::AllocateAligned<std::int32_t>(kMaxQueries);
  hi_ = hwy::AllocateAligned<std::int32_t>(kMaxQueries);
  if (simd::amx()) amx_ = std::make_unique<AmxScratch>(heads);
}

int max_tile_rows(const HeadShape& heads) {
  return std::max(1, TileScratch::kMaxQueries / heads.heads_per_kv());
}

std::uint64_t attend_tile(const TileInput& tile, TileScratch& scratch) {
  const std::size_t queries = tile.rows.size() * static_cast<std::size_t>(tile.heads.heads_per_kv());
  if (scratch.amx() && simd::amx() && queries >= kAmxQueries) return attend_amx(tile, *scratch.amx());
  return HWY_DYNAMIC_DISPATCH(are_many)(queries) ? attend_many(tile, scratch) : attend_few(tile, scratch);
}

void merge_row(const HeadShape& heads, KvFormat format, const float* states, std::span<const std::int32_t> partials,
               float* out) {
  HWY_DYNAMIC_DISPATCH(merge)(heads, format, states, partials.data(), static_cast<int>(partials.size()), out);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
