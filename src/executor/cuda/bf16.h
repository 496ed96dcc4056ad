// A number as bf16.
#pragma once

#include <bit>
#include <cstdint>

namespace coppice::executor::cuda {

/// Rounded to the nearest, halves to even; NaN stays one.
inline std::uint16_t to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (x != x) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace coppice::executor::cuda
