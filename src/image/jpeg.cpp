// JPEG by libjpeg-turbo.
#include <turbojpeg.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "image/codecs.h"
#include "image/orientation.h"
#include "port/turn.h"

namespace coppice::image {
namespace {

constexpr const char* kEndsEarly = "is a JPEG file that ends early";

struct Destroy {
  void operator()(void* handle) const { tjDestroy(handle); }
};
using Handle = std::unique_ptr<void, Destroy>;

struct Header {
  int width = 0;
  int height = 0;
  int subsampling = 0;
  int colours = 0;
};

std::expected<Header, Complaint> read_header(const Handle& handle, Bytes file) {
  Header header;
  if (tjDecompressHeader3(handle.get(), file.data(), file.size(), &header.width, &header.height, &header.subsampling,
                          &header.colours) != 0 &&
      tjGetErrorCode(handle.get()) != TJERR_WARNING) {
    return std::unexpected(Complaint("is a JPEG file that cannot be read: ") + tjGetErrorStr2(handle.get()));
  }
  if (header.width == 0 || header.height == 0) return std::unexpected(kEndsEarly);
  return header;
}

/// cmyk: [n, 4], each the light that is left, as Adobe's programs write it and all others read it.
std::vector<std::uint8_t> to_rgb(const std::vector<std::uint8_t>& cmyk) {
  std::vector<std::uint8_t> rgb(cmyk.size() / 4 * 3);
  for (std::size_t i = 0; i < cmyk.size() / 4; ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      rgb[3 * i + c] = static_cast<std::uint8_t>((cmyk[4 * i + c] * cmyk[4 * i + 3] + 127) / 255);
    }
  }
  return rgb;
}

/// What lies in a file before its first scan (ISO 10918-1, annex B).
struct Segments {
  Bytes exif;              ///< empty: none
  std::size_t first_scan;  ///< where it begins; the file's size: nowhere
};

Segments read_segments(Bytes file) {
  constexpr std::uint8_t kScan = 0xDA;
  constexpr std::uint8_t kApplication1 = 0xE1;
  constexpr std::uint8_t kExif[] = {'E', 'x', 'i', 'f', 0, 0};  // others use this segment, too
  Segments segments{.exif = {}, .first_scan = file.size()};
  std::size_t at = 2;  // behind the start of image
  while (at + 4 <= file.size()) {
    const std::uint8_t marker = file[at + 1];
    if (file[at] != 0xFF || marker == 0xFF || marker == 0) {  // a fill byte, or one that the library jumps over, too
      ++at;
      continue;
    }
    const std::size_t length = std::size_t{file[at + 2]} << 8U | file[at + 3];
    if (length < 2 || at + 2 + length > file.size()) break;
    if (marker == kScan) {
      segments.first_scan = at + 2 + length;
      break;
    }
    const Bytes content = file.subspan(at + 4, length - 2);
    if (marker == kApplication1 && segments.exif.empty() && content.size() > sizeof kExif &&
        std::ranges::equal(content.first(sizeof kExif), kExif)) {
      segments.exif = content;
    }
    at += 2 + length;
  }
  return segments;
}

/// Is there an end of image behind the first scan? No scan's data have such bytes. The library fills up what is
/// missing.
bool has_end(Bytes file, std::size_t first_scan) {
  constexpr std::uint8_t kEnd[] = {0xFF, 0xD9};
  return !std::ranges::search(file.subspan(first_scan), kEnd).empty();
}

}  // namespace

std::expected<Head, Complaint> jpeg_head(Bytes file) {
  const Handle handle(tjInitDecompress());
  const auto header = read_header(handle, file);
  if (!header) return std::unexpected(header.error());
  return Head{Format::kJpeg, static_cast<std::uint32_t>(header->width), static_cast<std::uint32_t>(header->height)};
}

std::expected<Pixels, Complaint> decode_jpeg(Bytes file, const Head& head) {
  const Handle handle(tjInitDecompress());
  const auto header = read_header(handle, file);
  if (!header) return std::unexpected(header.error());
  const Segments segments = read_segments(file);
  if (!has_end(file, segments.first_scan)) return std::unexpected(kEndsEarly);
  const bool inks = header->colours == TJCS_CMYK || header->colours == TJCS_YCCK;
  const std::size_t n_pixels = std::size_t{head.width} * head.height;
  std::vector<std::uint8_t> samples(n_pixels * (inks ? 4 : 3));
  port::between_steps();
  // A progressive file may describe each pixel again and again: 500 scans are the most.
  const int result = tjDecompress2(handle.get(), file.data(), file.size(), samples.data(), header->width, 0,
                                   header->height, inks ? TJPF_CMYK : TJPF_RGB, TJFLAG_LIMITSCANS);
  port::between_steps();
  if (result != 0 && tjGetErrorCode(handle.get()) != TJERR_WARNING) {
    return std::unexpected(Complaint("is a JPEG file that cannot be read: ") + tjGetErrorStr2(handle.get()));
  }
  // The library's other warnings are about bytes that it could do without.
  if (result != 0 && std::string_view(tjGetErrorStr2(handle.get())).contains("remature end"))
    return std::unexpected(kEndsEarly);
  Pixels pixels{.width = head.width, .height = head.height, .rgb = inks ? to_rgb(samples) : std::move(samples)};
  return upright(std::move(pixels), exif_orientation(segments.exif));
}

}  // namespace coppice::image
