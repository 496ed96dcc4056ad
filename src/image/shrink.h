// Smaller pictures. Free functions without state.
#pragma once

#include <cstdint>

#include "image/pixels.h"

namespace coppice::image {

/// No more than `side` pixels wide or high, in the same proportions: each pixel is the mean of those that it covers.
/// One that is small enough stays as it is. REQUIRES: side > 0.
Pixels shrink(Pixels pixels, std::uint32_t side);

}  // namespace coppice::image
