// Pixels: a decoded picture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace coppice::image {

/// Rows from the top, without gaps. A value.
struct Pixels {
  std::uint32_t width = 0;
  std::uint32_t height = 0;
  std::vector<std::uint8_t> rgb;  ///< [height, width, 3]: sRGB, as the file says it; what is transparent lies on white
};

}  // namespace coppice::image
