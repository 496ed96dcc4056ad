#include "attention/cpu/tile_kernel.h"

#include <algorithm>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/tile_kernel.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "attention/cpu/amx-inl.h"
#include "attention/cpu/amx_few-inl.h"
#include "attention/cpu/few-inl.h"
#include "attention/cpu/many-inl.h"
#include "attention/cpu/many_float-inl.h"
#include "attention/cpu/many_whole-inl.h"
#include "attention/cpu/rotate-inl.h"
#include "check/assert.h"
#include "simd/kernel-inl.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

/// What tiles of many queries multiply. A whole number's product takes half as long as an f32 one's on x86, and as long
/// on ARM.
#if HWY_TARGET <= HWY_SSSE3 && HWY_ARCH_X86
using Products = WholeProducts;
#else
using Products = FloatProducts;
#endif

/// The driver: some key heads at a time, of them some slots at a time, and of these one head after the other. How many,
/// and how scores and weighted values are computed, is up to Loops: FewTile, ManyTile, AmxFewTile or AmxTile. Returns
/// the bytes of keys and values loaded.
template <class Loops>
std::uint64_t go_through(const TileView& t, Loops&& loops) {
  for (int head = 0; head < t.n_kv_head(); head += loops.heads_at_once()) {
    const int heads = std::min(loops.heads_at_once(), t.n_kv_head() - head);
    loops.begin_heads(head, heads);
    for (int i = 0; i < heads; ++i) loops.set_queries(head + i, i);
    for (int slot = t.begin(); slot < t.end();) {
      const int n = loops.slots_at_once(slot);
      loops.begin_slots(slot);
      for (int i = 0; i < heads; ++i) loops.attend(head + i, i, slot, n);
      slot += n;
    }
    for (int i = 0; i < heads; ++i) loops.store_states(head + i, i);
  }
  return 2 * t.bytes_of_head() * static_cast<std::uint64_t>(t.n_kv_head()) *
         static_cast<std::uint64_t>(std::max(t.end() - t.begin(), 0)) * static_cast<std::uint64_t>(loops.passes());
}

/// Vectors across queries pay when most of their lanes are used (docs/decisions.md, "The tree kernel on CPUs"). AMX
/// pays sooner: it converts blocks once, where FewTile reads them once for every four queries
/// (docs/decisions.md, "AMX tiles").
std::uint64_t attend(const TileInput& input, TileScratch& scratch) {
  const TileView t(input);
  return with_loader(input.pool.format, [&](auto load) HWY_ATTR -> std::uint64_t {
    using Load = decltype(load);
#if COPPICE_SIMD_AMX
    constexpr int kAmxQueries = 9;
    if (scratch.amx() && simd::amx() && t.n_queries() >= kAmxQueries) {
      const simd::HWY_NAMESPACE::WholeTiles shape;
      const bool few = t.n_queries() <= AmxScratch::kFew * AmxScratch::kColumn;
      return few ? go_through(t, AmxFewTile<Load>(t, *scratch.amx())) : go_through(t, AmxTile<Load>(t, *scratch.amx()));
    }
#endif
    COPPICE_ASSERT(t.n_queries() <= TileScratch::kMaxQueries);  // AMX takes more
    const bool many = 4 * t.n_queries() >= 3 * static_cast<int>(hn::Lanes(hn::ScalableTag<float>()));
    return many ? go_through(t, ManyTile<Load, Products>(t, scratch)) : go_through(t, FewTile<Load>(t, scratch));
  });
}

void merge(const HeadShape& heads, KvFormat format, const float* states, const std::int32_t* partials, int n,
           const float* sinks, float* out) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d)), dim = heads.head_dim;
  const std::ptrdiff_t per_row = std::ptrdiff_t{heads.n_head} * (dim + 2);
  for (int h = 0; h < heads.n_head; ++h, out += dim) {
    const auto state = [&](int i) { return states + partials[i] * per_row + std::ptrdiff_t{h} * (dim + 2); };
    float max = sinks ? sinks[h] : -std::numeric_limits<float>::infinity();
    for (int i = 0; i < n; ++i) max = std::max(max, state(i)[dim]);
    float sum = sinks ? std::exp(sinks[h] - max) : 0.0F;
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

HWY_EXPORT(attend);
HWY_EXPORT(merge);

std::size_t padded(std::size_t n) {
  return (n + TileScratch::kMaxLanes - 1) / TileScratch::kMaxLanes * TileScratch::kMaxLanes;
}

}  // namespace

TileScratch::TileScratch(const HeadShape& heads, int block_size) {
  COPPICE_ASSERT(heads.head_dim % kMaxLanes == 0 && block_size % kKeysAtOnce == 0 && block_size <= kMaxSlots);
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
  const int queries = simd::amx() ? AmxScratch::kMaxColumns * AmxScratch::kColumn : TileScratch::kMaxQueries;
  return std::max(1, queries / heads.heads_per_kv());
}

std::uint64_t attend_tile(const TileInput& tile, TileScratch& scratch) {
  return COPPICE_SIMD_CALL(attend)(tile, scratch);
}

void merge_row(const HeadShape& heads, KvFormat format, const float* states, std::span<const std::int32_t> partials,
               float* out, const float* sinks) {
  COPPICE_SIMD_CALL(merge)(heads, format, states, partials.data(), static_cast<int>(partials.size()), sinks, out);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
