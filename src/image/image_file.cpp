#include "image/image_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "image/codecs.h"

namespace coppice::image {
namespace {

bool begins(Bytes file, std::string_view with, std::size_t at = 0) {
  return file.size() >= at + with.size() &&
         std::equal(with.begin(), with.end(), file.begin() + static_cast<std::ptrdiff_t>(at),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
}

std::optional<Format> format_of(Bytes file) {
  if (begins(file, "\xFF\xD8\xFF")) return Format::kJpeg;
  if (begins(file, "\x89PNG\r\n\x1A\n")) return Format::kPng;
  if (begins(file, "RIFF") && begins(file, "WEBP", 8)) return Format::kWebp;
  if (begins(file, "GIF87a") || begins(file, "GIF89a")) return Format::kGif;
  if (begins(file, "BM")) return Format::kBmp;
  return std::nullopt;
}

}  // namespace

Pixels on_white(std::span<const std::uint8_t> rgba, std::uint32_t width, std::uint32_t height) {
  Pixels pixels{.width = width, .height = height};
  const std::size_t n = std::size_t{width} * height;
  pixels.rgb.resize(3 * n);
  for (std::size_t i = 0; i < n; ++i) {
    const unsigned alpha = rgba[4 * i + 3];
    for (std::size_t c = 0; c < 3; ++c) {
      pixels.rgb[3 * i + c] = static_cast<std::uint8_t>((rgba[4 * i + c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
  return pixels;
}

std::expected<Head, Complaint> read_head(Bytes file) {
  if (file.empty()) return std::unexpected("is empty");
  const auto format = format_of(file);
  if (!format) return std::unexpected("is no JPEG, PNG, WebP, GIF or BMP file");
  switch (*format) {
    case Format::kJpeg:
      return jpeg_head(file);
    case Format::kPng:
      return png_head(file);
    case Format::kWebp:
      return webp_head(file);
    case Format::kGif:
      return gif_head(file);
    case Format::kBmp:
      return bmp_head(file);
  }
  return std::unexpected("is no JPEG, PNG, WebP, GIF or BMP file");
}

std::expected<Pixels, Complaint> decode(Bytes file, std::uint64_t most_pixels) {
  const auto head = read_head(file);
  if (!head) return std::unexpected(head.error());
  if (head->width == 0 || head->height == 0) return std::unexpected("has no pixels");
  if (std::uint64_t{head->width} * head->height > most_pixels) {
    return std::unexpected(
        fmt::format("has {} x {} pixels, and {} is the most", head->width, head->height, most_pixels));
  }
  switch (head->format) {
    case Format::kJpeg:
      return decode_jpeg(file, *head);
    case Format::kPng:
      return decode_png(file, *head);
    case Format::kWebp:
      return decode_webp(file, *head);
    case Format::kGif:
      return decode_gif(file, *head);
    case Format::kBmp:
      return decode_bmp(file, *head);
  }
  return std::unexpected("is no JPEG, PNG, WebP, GIF or BMP file");
}

}  // namespace coppice::image
