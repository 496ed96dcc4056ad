// What is in the bytes of an image file: JPEG, PNG, WebP, GIF or BMP.
//
// The bytes come from strangers. Libraries that distributions mend decode them (docs/decisions.md,
// "Who decodes pictures"); what they may allocate and how long they may work is bounded by the number of pixels, which
// is read from the file's head before anything is unpacked.
//
// A new format: Format below, its two functions in codecs.h, a file of its own (png.cpp), a row in docs/api.md.
//
// Thread safety: free functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string>

#include "image/pixels.h"

namespace coppice::image {

enum class Format { kJpeg, kPng, kWebp, kGif, kBmp };

/// Says what is wrong in words that follow "The image": "is no JPEG, PNG, WebP, GIF or BMP file".
using Complaint = std::string;

/// As the file's head says, before it is turned as its camera was held.
struct Head {
  Format format = Format::kPng;
  std::uint32_t width = 0;
  std::uint32_t height = 0;
};

/// Reads no more than the head, and allocates nothing in proportion to it.
std::expected<Head, Complaint> read_head(std::span<const std::uint8_t> file);

/// The whole picture, turned upright (EXIF's orientation in a JPEG file). Of several frames the first. A file that ends
/// early is refused. `most_pixels`: a head that says more is refused; the decoder takes at most some 16 bytes for each.
std::expected<Pixels, Complaint> decode(std::span<const std::uint8_t> file, std::uint64_t most_pixels);

}  // namespace coppice::image
