#include "attention/cpu/kv_codec.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attention/cpu/kv_codec.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
// After foreach_target.
#include "attention/cpu/kv_encode-inl.h"
#include "attention/cpu/kv_load-inl.h"
#include "simd/kernel-inl.h"
#include "simd/target.h"

HWY_BEFORE_NAMESPACE();
namespace coppice::attention::HWY_NAMESPACE {

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
  COPPICE_SIMD_CALL(encode)(format, head_dim, values, to);
}

void decode_head(KvFormat format, int head_dim, const std::byte* head, float* values) {
  COPPICE_SIMD_CALL(decode)(format, head_dim, head, values);
}

}  // namespace coppice::attention
#endif  // HWY_ONCE
