// BMP by stb_image, which takes what is missing at the end for zeros: the file's length is looked at first.
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STBI_NO_FAILURE_STRINGS
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Weverything"
#include <stb/stb_image.h>
#pragma clang diagnostic pop

#include <cstddef>
#include <limits>
#include <memory>

#include "image/codecs.h"

namespace coppice::image {
namespace {

constexpr std::size_t kCoreHeader = 12;  ///< bytes of OS/2's old header, which has 16-bit sizes

std::uint32_t number(Bytes file, std::size_t at, std::size_t n_bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = n_bytes; i-- > 0;) value = value << 8U | file[at + i];
  return value;
}

}  // namespace

std::expected<Head, Complaint> bmp_head(Bytes file) {
  if (file.size() < 34) return std::unexpected("is a BMP file that ends early");
  if (number(file, 14, 4) == kCoreHeader) return Head{Format::kBmp, number(file, 18, 2), number(file, 20, 2)};
  const std::uint32_t height = number(file, 22, 4);  // negative: rows from the top
  return Head{Format::kBmp, number(file, 18, 4), height > 0x7FFFFFFF ? 0 - height : height};
}

std::expected<Pixels, Complaint> decode_bmp(Bytes file, const Head& head) {
  constexpr std::uint32_t kPlain = 0;
  constexpr std::uint32_t kBitFields = 3;
  const bool old = number(file, 14, 4) == kCoreHeader;
  const std::uint32_t compression = old ? kPlain : number(file, 30, 4);
  if ((compression != kPlain && compression != kBitFields) || file.size() > std::numeric_limits<int>::max()) {
    return std::unexpected("is a compressed BMP file, which is not read");
  }
  const std::size_t bits = number(file, old ? 24 : 28, 2);
  const std::size_t row_bytes = (std::size_t{head.width} * bits + 31) / 32 * 4;
  if (file.size() < number(file, 10, 4) + row_bytes * head.height)
    return std::unexpected("is a BMP file that ends early");
  int width = 0;
  int height = 0;
  int channels = 0;
  struct Free {
    void operator()(stbi_uc* rgba) const { stbi_image_free(rgba); }
  };
  const std::unique_ptr<stbi_uc, Free> rgba(
      stbi_load_from_memory(file.data(), static_cast<int>(file.size()), &width, &height, &channels, 4));
  if (!rgba || static_cast<std::uint32_t>(width) != head.width || static_cast<std::uint32_t>(height) != head.height) {
    return std::unexpected("is a BMP file of a kind that is not read");
  }
  // Without masks the fourth byte of a pixel means nothing.
  const std::span<stbi_uc> bytes(rgba.get(), std::size_t{4} * head.width * head.height);
  if (compression == kPlain) {
    for (std::size_t i = 3; i < bytes.size(); i += 4) bytes[i] = 0xFF;
  }
  return on_white(bytes, head.width, head.height);
}

}  // namespace coppice::image
