#include "attention/cpu/new_rows.h"

#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/new_rows.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "attention/cpu/kv_encode-inl.h"
#include "simd/kernel-inl.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

/// Pairs are neighbours.
HWY_INLINE void turn_neighbours(const float* turn, int dims, float* x) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const float* others = turn + dims;
  int i = 0;
  for (; i + lanes <= dims; i += lanes) {
    const auto v = hn::LoadU(d, x + i);
    const auto partner = hn::Mul(hn::Reverse2(d, v), hn::LoadU(d, others + i));
    hn::StoreU(hn::MulAdd(v, hn::LoadU(d, turn + i), partner), d, x + i);
  }
  for (; i < dims; i += 2) {
    const float even = x[i], odd = x[i + 1];
    x[i] = even * turn[i] + odd * others[i];
    x[i + 1] = odd * turn[i + 1] + even * others[i + 1];
  }
}

/// Pairs are a value of the first half and one of the second.
HWY_INLINE void turn_halves(const float* turn, int dims, float* x) {
  const hn::ScalableTag<float> d;
  const int lanes = static_cast<int>(hn::Lanes(d)), half = dims / 2;
  const float* others = turn + dims;
  float* y = x + half;
  int i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto a = hn::LoadU(d, x + i), b = hn::LoadU(d, y + i);
    hn::StoreU(hn::MulAdd(a, hn::LoadU(d, turn + i), hn::Mul(b, hn::LoadU(d, others + i))), d, x + i);
    hn::StoreU(hn::MulAdd(b, hn::LoadU(d, turn + half + i), hn::Mul(a, hn::LoadU(d, others + half + i))), d, y + i);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = y[i];
    x[i] = a * turn[i] + b * others[i];
    y[i] = b * turn[half + i] + a * others[half + i];
  }
}

/// Heads [begin, end), counted through the rows: of each its queries, its keys, its values.
void enter_heads(const NewRows& r, std::int64_t begin, std::int64_t end) {
  const int heads = r.n_head + 2 * r.n_kv_head;
  const std::size_t head_size = head_bytes(r.format, r.head_dim);
  const auto turn_head = [&](const float* turn, float* x) HWY_ATTR {
    r.halves ? turn_halves(turn, r.turned_dims, x) : turn_neighbours(turn, r.turned_dims, x);
  };
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t row = i / heads;
    const auto head = static_cast<int>(i % heads);
    const float* turn = r.turns + row * 2 * r.turned_dims;
    if (head < r.n_head) {
      turn_head(turn, r.queries + (row * r.n_head + head) * r.head_dim);
      continue;
    }
    const bool is_key = head < r.n_head + r.n_kv_head;
    const int kv_head = (head - r.n_head) % r.n_kv_head;
    const std::int64_t at = (row * r.n_kv_head + kv_head) * r.head_dim;
    if (is_key) turn_head(turn, r.keys + at);
    encode(r.format, r.head_dim, (is_key ? r.keys : r.values) + at,
           (is_key ? r.key_pool : r.value_pool) + static_cast<std::size_t>(r.slots[row]) * r.row_stride +
               static_cast<std::size_t>(kv_head) * head_size);
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::attention {

namespace {

HWY_EXPORT(enter_heads);

}  // namespace

void enter_rows(const NewRows& rows, int worker, int n_workers) {
  const std::int64_t n = std::int64_t{rows.n} * (rows.n_head + 2 * rows.n_kv_head);
  COPPICE_SIMD_CALL(enter_heads)(rows, n * worker / n_workers, n * (worker + 1) / n_workers);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
