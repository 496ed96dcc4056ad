// How a camera was held: EXIF's orientation tag (0x0112; JEITA CP-3451, 4.6.4 A).
#pragma once

#include <cstdint>
#include <span>

#include "image/pixels.h"

namespace coppice::image {

/// 1 to 8; 1, upright, where it says nothing that can be read. tiff: what EXIF's segment or chunk holds; some writers
/// put JPEG's mark before it.
int exif_orientation(std::span<const std::uint8_t> tiff);

/// `pixels` of a camera that was held like `orientation`, upright.
Pixels upright(Pixels pixels, int orientation);

}  // namespace coppice::image
