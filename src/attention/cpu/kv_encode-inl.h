// One head's keys or values into a KV format. Included once for each instruction set.

// clang-format off
#if defined(COPPICE_KV_ENCODE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COPPICE_KV_ENCODE_INL
#undef COPPICE_KV_ENCODE_INL
#else
#define COPPICE_KV_ENCODE_INL
#endif
// clang-format on

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "attention/cpu/kv_load-inl.h"
#include "attention/cpu/rotate-inl.h"
#include "simd/kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// What f16 can't hold becomes the largest that it can: as infinity, times a weight of 0, it would spoil the answers of
/// those who don't see it. NaN stays NaN on some instruction sets.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V within_f16(D d, V x) {
  constexpr float kMost = 65504.0F;
  return hn::Min(hn::Set(d, kMost), hn::Max(hn::Set(d, -kMost), x));
}

/// Stores a scale, and returns what was stored. f16 holds it: of values within f16, rotated ones are at most
/// sqrt(kMaxRotated) times as large, and a scale is less than a fortieth of the largest.
HWY_INLINE float store_scale(float scale, std::byte* head) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  hn::StoreU(hn::DemoteTo(half, hn::Set(d, scale)), half, reinterpret_cast<hwy::float16_t*>(head));
  return scale_of(head);
}

HWY_INLINE void encode_f16(const float* x, int n, std::byte* to) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> half;
  auto* halves = reinterpret_cast<hwy::float16_t*>(to);
  const int lanes = static_cast<int>(hn::Lanes(d));
  int i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::DemoteTo(half, within_f16(d, hn::LoadU(d, x + i))), half, halves + i);
  }
  const hn::CappedTag<float, 1> one;
  const hn::Rebind<hwy::float16_t, decltype(one)> one_half;
  for (; i < n; ++i) {
    hn::StoreU(hn::DemoteTo(one_half, within_f16(one, hn::LoadU(one, x + i))), one_half, halves + i);
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
  const auto most = hn::Set(d, 127.0F);  // more comes of a tiny scale, which f16 rounds down
  auto* codes = reinterpret_cast<std::int8_t*>(to + kScaleBytes);
  for (int i = 0; i < n; i += lanes) {
    const auto code = hn::Clamp(hn::Mul(hn::Load(d, x + i), inverse), hn::Neg(most), most);
    hn::StoreU(hn::DemoteTo(bytes, hn::NearestInt(code)), bytes, codes + i);
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

/// REQUIRES: n is a multiple of 16, at most kMaxRotated, unless the format is f16.
inline void encode(KvFormat format, int n, const float* values, std::byte* to) {
  if (format == KvFormat::kF16) return encode_f16(values, n, to);
  const hn::ScalableTag<float> d;
  HWY_ALIGN float within[kMaxRotated];
  HWY_ALIGN float rotated[kMaxRotated];
  for (int i = 0; i < n; i += static_cast<int>(hn::Lanes(d))) {
    hn::Store(within_f16(d, hn::LoadU(d, values + i)), d, within + i);
  }
  rotate(within, 1.0F, n, rotated);
  if (format == KvFormat::kInt8) return encode_int8(rotated, n, to);
  encode_turbo4(rotated, n, to);
}

}  // namespace coppice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // COPPICE_KV_ENCODE_INL
