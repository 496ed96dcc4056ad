// What 64-bit ARM has beyond the NEON that Highway 1.0.3 knows.
#pragma once

#include <cstdint>

namespace coppice::simd {

enum class NeonBytes : std::uint8_t {
  kNone,
  kDotprod,  ///< dot products of four bytes (FEAT_DotProd, of ARMv8.2)
  kI8mm,     ///< and products of 2 x 8 and 8 x 2 bytes (FEAT_I8MM, of ARMv8.6)
};

/// What this CPU has, and the system tells of. Elsewhere than on ARM: nothing.
NeonBytes neon_bytes_of_cpu();

}  // namespace coppice::simd
