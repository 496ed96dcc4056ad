// How one head's keys or values of one token lie in memory. Plain data; what kernels, the codec and the scalar
// reference agree on.
//
//   f16     head_dim IEEE halves.
//   int8    an f16 scale, then head_dim signed bytes: rotated value = scale * byte.
//   turbo4  an f16 scale, then four-bit codes: rotated value = scale * kTurbo4Levels[code]. Sixteen bytes hold 32
//           values: byte j has value j in its low half and value j + 16 in its high half, so that a vector of up to 16
//           lanes unpacks in order with one shift. A last group of 16 values leaves the high halves 0.
//
// Scales are not negative, as kernels rely on, and lie beside the values that they scale, so whoever copies a slot's
// row copies all there is.
//
// int8 and turbo4 hold rotated vectors, which spreads what a few large channels hold over all of them (QuaRot, Ashkboos
// et al. 2024; TurboQuant, Zandieh et al. 2025): signs of some values flip, then a normalised Walsh-Hadamard transform.
// It is orthogonal: rotated queries give the same scores with rotated keys, and weighted sums of rotated values are
// rotated back once. A head is rotated in pieces whose lengths are powers of two, the longest first: 80 = 64 + 16.
//
// Invariant: what bytes mean never changes under a format's name; digests of stored blocks contain it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace coppice::attention {

enum class KvFormat : std::uint8_t { kF16, kInt8, kTurbo4 };

inline constexpr std::array kKvFormats = {KvFormat::kF16, KvFormat::kInt8, KvFormat::kTurbo4};

constexpr std::string_view format_name(KvFormat format) {
  constexpr std::string_view kNames[] = {"f16", "int8", "turbo4"};
  return kNames[static_cast<std::size_t>(format)];
}

constexpr std::optional<KvFormat> find_format(std::string_view name) {
  for (const KvFormat format : kKvFormats) {
    if (format_name(format) == name) return format;
  }
  return std::nullopt;
}

/// Bytes of one head's keys (or values) of one token. REQUIRES: n is a multiple of 16.
constexpr std::size_t head_bytes(KvFormat format, int n) {
  constexpr std::size_t kScale = 2;
  const auto values = static_cast<std::size_t>(n);
  if (format == KvFormat::kF16) return 2 * values;
  return kScale + (format == KvFormat::kInt8 ? values : (values + 31) / 32 * 16);
}

constexpr bool is_rotated(KvFormat format) {
  return format != KvFormat::kF16;
}

/// Heads of rotated formats have at most this many values.
inline constexpr int kMaxRotated = 1024;

/// The longest piece that a head of n more values is rotated in.
constexpr int rotated_piece(int n) {
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
}

/// +1 or -1: the sign that value i of a head gets before the transform. Hashed from i (splitmix64).
constexpr float rotation_sign(int i) {
  std::uint64_t x = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return ((x ^ (x >> 31)) & 1) != 0 ? -1.0F : 1.0F;
}

/// The best 16 levels for a standard normal value (Lloyd 1957, Max 1960) times kTurbo4Unit, rounded to whole numbers,
/// which costs a thousandth of the error. Sign and magnitude: code + 8 is -code.
inline constexpr std::array<std::int8_t, 16> kTurbo4Levels = {6,  18,  31,  44,  58,  75,  96,  127,
                                                              -6, -18, -31, -44, -58, -75, -96, -127};
inline constexpr float kTurbo4Unit = 46.476F;

}  // namespace coppice::attention
