#include "image/shrink.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace coppice::image {
namespace {

/// Pixels [from, to) of a line that become its i-th of n.
struct Covered {
  std::size_t from, to;
};

Covered covered(std::size_t i, std::size_t n, std::size_t of) {
  const std::size_t from = i * of / n;
  return {from, std::max(from + 1, (i + 1) * of / n)};
}

}  // namespace

Pixels shrink(Pixels pixels, std::uint32_t side) {
  const std::uint32_t longest = std::max(pixels.width, pixels.height);
  if (longest <= side) return pixels;
  const auto scaled = [&](std::uint32_t length) {
    return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(std::uint64_t{length} * side / longest));
  };
  Pixels small{.width = scaled(pixels.width), .height = scaled(pixels.height), .rgb = {}};
  small.rgb.resize(std::size_t{3} * small.width * small.height);
  for (std::size_t y = 0; y < small.height; ++y) {
    const Covered lines = covered(y, small.height, pixels.height);
    for (std::size_t x = 0; x < small.width; ++x) {
      const Covered columns = covered(x, small.width, pixels.width);
      const std::size_t n = (lines.to - lines.from) * (columns.to - columns.from);
      for (std::size_t c = 0; c < 3; ++c) {
        std::size_t sum = n / 2;
        for (std::size_t line = lines.from; line < lines.to; ++line)
          for (std::size_t column = columns.from; column < columns.to; ++column)
            sum += pixels.rgb[(line * pixels.width + column) * 3 + c];
        small.rgb[(y * small.width + x) * 3 + c] = static_cast<std::uint8_t>(sum / n);
      }
    }
  }
  return small;
}

}  // namespace coppice::image
