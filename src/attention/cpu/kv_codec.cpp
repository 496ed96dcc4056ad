#include "attention/cpu/kv_codec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/kv_codec.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include <hwy/highway.h>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/rotate-inl.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

/// Stores a scale, and returns what was stored.
HWY_INLINE float store_scale(float scale, std::byte* head) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  hn::StoreU(hn::DemoteTo(half, hn::Set(d, scale)), half, reinterpret_cast<hwy::float16_t*>(head));
  return scale_of(head);
}

HWY_INLINE void encode_f16(const float* x, int n, std::byte* to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  for (int i = 0; i < n; i += static_cast<int>(hn::Lanes(d))) {
    hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, x + i)), half, reinterpret_cast<hwy::float16_t*>(to) + i);
  }
}

/// x: rotated.
HWY_INLINE void encode_int8(const float* x, int n, std::byte* to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<std::int8_t, decltype(d)> bytes;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto largest = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) largest = hn::Max(largest, hn::Abs(hn::Load(d, x + i)));
  const float scale = store_scale(hn::GetLane(hn::MaxOfLanes(d, largest)) / 127.0F, to);
  const auto inverse = hn::Set(d, scale > 0.0F ? 1.0F / scale : 0.0F);
  auto* codes = reinterpret_cast<std::int8_t*>(to + kScaleBytes);
  for (int i = 0; i < n; i += lanes) {
    hn::StoreU(hn::DemoteTo(bytes, hn::NearestInt(hn::Mul(hn::Load(d, x + i), inverse))), bytes, codes + i);
  }
}

/// Codes by the value's own spread, then the scale that leaves the least square error with these codes. x: rotated.
HWY_INLINE void encode_turbo4(const float* x, int n, std::byte* to) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::uint8_t, decltype(d)> bytes;
  const int lanes = static_cast<int>(hn::Lanes(d));
  auto squares = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) squares = hn::MulAdd(hn::Load(d, x + i), hn::Load(d, x + i), squares);
  const float spread = std::sqrt(hn::GetLane(hn::SumOfLanes(d, squares)) / static_cast<float>(n));
  const auto unit = hn::Set(d, spread > 0.0F ? kTurbo4Unit / spread : 0.0F);
  HWY_ALIGN std::uint8_t codes[kMaxRotated];
  auto product = hn::Zero(d), level_squares = hn::Zero(d);
  for (int i = 0; i < n; i += lanes) {
    const auto v = hn::Load(d, x + i), size = hn::Mul(hn::Abs(v), unit);
    auto code = hn::Zero(di);
    auto level = hn::Set(d, kTurbo4Levels[0]);
    for (std::size_t k = 1; k < 8; ++k) {
      const float low = kTurbo4Levels[k - 1], high = kTurbo4Levels[k];
      const auto above = hn::Gt(size, hn::Set(d, (low + high) / 2));
      level = hn::Add(level, hn::IfThenElseZero(above, hn::Set(d, high - low)));
      code = hn::Sub(code, hn::VecFromMask(di, hn::RebindMask(di, above)));
    }
    const auto negative = hn::Lt(v, hn::Zero(d));
    code = hn::Or(code, hn::IfThenElseZero(hn::RebindMask(di, negative), hn::Set(di, 8)));
    hn::StoreU(hn::DemoteTo(bytes, code), bytes, codes + i);
    product = hn::MulAdd(hn::Abs(v), level, product);
    level_squares = hn::MulAdd(level, level, level_squares);
  }
  store_scale(hn::GetLane(hn::SumOfLanes(d, product)) / hn::GetLane(hn::SumOfLanes(d, level_squares)), to);
  auto* pairs = reinterpret_cast<std::uint8_t*>(to + kScaleBytes);
  for (int i = 0; i < n; i += 32, pairs += 16) {
    const bool whole = i + 32 <= n;
    for (int j = 0; j < 16; ++j) {
      const int high = whole ? codes[i + j + 16] << 4 : 0;
      pairs[j] = static_cast<std::uint8_t>(codes[i + j] | high);
    }
  }
}

void encode(KvFormat format, int n, const float* values, std::byte* to) {
  if (format == KvFormat::kF16) return encode_f16(values, n, to);
  HWY_ALIGN float rotated[kMaxRotated];
  rotate(values, 1.0F, n, rotated);
  if (format == KvFormat::kInt8) return encode_int8(rotated, n, to);
  encode_turbo4(rotated, n, to);
}

template <class Load>
void decode_with(int n, const std::byte* head, float* values) {
  const hn::ScalableTag<float> d;
  const auto scale = hn::Set(d, kScaled<Load> ? scale_of(head) : 1.0F);
  for (int i = 0; i < n; i += static_cast<int>(hn::Lanes(d))) {
    hn::StoreU(hn::Mul(Load::load(d, head, i), scale), d, values + i);
  }
  if (is_rotated(Load::kFormat)) rotate_back(values, n);
}

void decode(KvFormat format, int n, const std::byte* head, float* values) {
  switch (format) {
    case KvFormat::kF16:
      return decode_with<LoadF16>(n, head, values);
    case KvFormat::kInt8:
      return decode_with<LoadInt8>(n, head, values);
    case KvFormat::kTurbo4:
      return decode_with<LoadTurbo4>(n, head, values);
  }
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace coppice::attention {

namespace {

HWY_EXPORT(encode);
HWY_EXPORT(decode);

}  // namespace

void encode_head(KvFormat format, int head_dim, const float* values, std::byte* to) {
  simd::choose_target();
  HWY_DYNAMIC_DISPATCH(encode)(format, head_dim, values, to);
}

void decode_head(KvFormat format, int head_dim, const std::byte* head, float* values) {
  simd::choose_target();
  HWY_DYNAMIC_DISPATCH(decode)(format, head_dim, head, values);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
