// Image files from strangers: any bytes give a picture of the stated size, or words.
#include <cstdint>

#include "fuzz/fuzz.h"
#include "image/image_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kMostPixels = 1 << 16;
  const auto pixels = coppice::image::decode({data, size}, kMostPixels);
  if (pixels && pixels->rgb.size() != std::size_t{3} * pixels->width * pixels->height) {
    coppice::testing::finding("a picture without the pixels that it states");
  }
  if (!pixels && pixels.error().empty()) coppice::testing::finding("an error without words");
  return 0;
}
