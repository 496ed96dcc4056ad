// One function for each format, for image_file.cpp only.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <vector>

#include "image/image_file.h"
#include "image/pixels.h"

namespace coppice::image {

using Bytes = std::span<const std::uint8_t>;

/// Of a file that begins as its format does.
std::expected<Head, Complaint> jpeg_head(Bytes file);
std::expected<Head, Complaint> png_head(Bytes file);
std::expected<Head, Complaint> webp_head(Bytes file);
std::expected<Head, Complaint> gif_head(Bytes file);
std::expected<Head, Complaint> bmp_head(Bytes file);

/// REQUIRES: `head` is what the format's function above has read from `file`, and its pixels fit into memory.
std::expected<Pixels, Complaint> decode_jpeg(Bytes file, const Head& head);
std::expected<Pixels, Complaint> decode_png(Bytes file, const Head& head);
std::expected<Pixels, Complaint> decode_webp(Bytes file, const Head& head);
std::expected<Pixels, Complaint> decode_gif(Bytes file, const Head& head);
std::expected<Pixels, Complaint> decode_bmp(Bytes file, const Head& head);

/// rgba: [height, width, 4], alpha not premultiplied.
Pixels on_white(std::span<const std::uint8_t> rgba, std::uint32_t width, std::uint32_t height);

}  // namespace coppice::image
