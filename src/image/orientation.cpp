#include "image/orientation.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <utility>

namespace coppice::image {
namespace {

using Bytes = std::span<const std::uint8_t>;

/// Numbers of a TIFF structure, in its own byte order.
struct Tiff {
  Bytes bytes;
  bool big_endian = false;

  std::optional<std::uint32_t> number(std::size_t at, std::size_t n_bytes) const {
    if (at > bytes.size() || bytes.size() - at < n_bytes) return std::nullopt;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < n_bytes; ++i) {
      value = value << 8U | bytes[at + (big_endian ? i : n_bytes - 1 - i)];
    }
    return value;
  }
};

}  // namespace

int exif_orientation(Bytes bytes) {
  constexpr std::uint8_t kMark[] = {'E', 'x', 'i', 'f', 0, 0};
  if (bytes.size() >= sizeof kMark && std::ranges::equal(bytes.first(sizeof kMark), kMark))
    bytes = bytes.subspan(sizeof kMark);
  if (bytes.size() < 8) return 1;
  const Tiff tiff{bytes, bytes[0] == 'M'};
  const auto directory = tiff.number(4, 4);
  const auto n_entries = directory ? tiff.number(*directory, 2) : std::nullopt;
  if (!n_entries) return 1;
  for (std::uint32_t i = 0; i < *n_entries; ++i) {
    const std::size_t entry = std::size_t{*directory} + 2 + 12 * std::size_t{i};
    const auto tag = tiff.number(entry, 2);
    if (!tag) return 1;
    if (*tag != 0x0112) continue;
    const auto value = tiff.number(entry + 8, 2);
    return value && *value >= 1 && *value <= 8 ? static_cast<int>(*value) : 1;
  }
  return 1;
}

Pixels upright(Pixels pixels, int orientation) {
  if (orientation <= 1 || orientation > 8) return pixels;
  const bool lies = orientation >= 5;
  Pixels turned{.width = lies ? pixels.height : pixels.width, .height = lies ? pixels.width : pixels.height};
  turned.rgb.resize(pixels.rgb.size());
  const std::size_t width = pixels.width;
  const std::size_t height = pixels.height;
  for (std::size_t y = 0; y < turned.height; ++y) {
    for (std::size_t x = 0; x < turned.width; ++x) {
      std::size_t from_x = lies ? y : x;
      std::size_t from_y = lies ? x : y;
      if (orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8) from_x = width - 1 - from_x;
      if (orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7) from_y = height - 1 - from_y;
      std::memcpy(&turned.rgb[3 * (y * turned.width + x)], &pixels.rgb[3 * (from_y * width + from_x)], 3);
    }
  }
  return turned;
}

}  // namespace coppice::image
