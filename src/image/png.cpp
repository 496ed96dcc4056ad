// PNG by libpng. Its errors are long jumps: no object that has a destructor is made between setjmp() and the call that
// may jump.
#include <png.h>

#include <csetjmp>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "image/codecs.h"
#include "image/orientation.h"
#include "port/turn.h"

namespace coppice::image {
namespace {

constexpr std::size_t kMostChunk =
    8 << 20;  ///< bytes that a chunk beside the picture (colour profile, text) may unpack to

/// What the reader is at: its functions find it by png_get_error_ptr() and png_get_io_ptr().
struct Source {
  Bytes file;
  std::size_t at = 0;
  bool ended = false;
  std::string problem;
};

void fail(png_structp png, png_const_charp message) {
  static_cast<Source*>(png_get_error_ptr(png))->problem = message;
  png_longjmp(png, 1);
}

void ignore(png_structp /*png*/, png_const_charp /*warning*/) {}

void read(png_structp png, png_bytep to, std::size_t n_bytes) {
  auto* source = static_cast<Source*>(png_get_io_ptr(png));
  if (source->file.size() - source->at < n_bytes) {
    source->ended = true;
    png_error(png, "it ends early");
  }
  std::memcpy(to, source->file.data() + source->at, n_bytes);
  source->at += n_bytes;
}

struct Reader {
  explicit Reader(Bytes file) : source{.file = file} {
    png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, fail, ignore);
    if (png != nullptr) info = png_create_info_struct(png);
    if (info == nullptr) return;
    png_set_read_fn(png, &source, read);
    png_set_user_limits(png, 0x7FFFFFFF, 0x7FFFFFFF);  // the caller's limit counts pixels
    png_set_chunk_malloc_max(png, kMostChunk);
    png_set_chunk_cache_max(png, 64);
  }
  ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Complaint complaint() const {
    return source.ended ? "is a PNG file that ends early" : "is a PNG file that cannot be read: " + source.problem;
  }

  Source source;
  png_structp png = nullptr;
  png_infop info = nullptr;
};

bool read_info(Reader& reader) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_read_info(reader.png, reader.info);
  return true;
}

/// Any kind of PNG file becomes four bytes a pixel. rows: one pointer for each.
bool read_rgba(Reader& reader, png_bytepp rows) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  png_set_scale_16(reader.png);
  png_set_expand(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_add_alpha(reader.png, 0xFF, PNG_FILLER_AFTER);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
  png_read_image(reader.png, rows);
  return true;
}

/// Of a chunk before the pixels. REQUIRES: read_info() returned true.
int orientation(const Reader& reader) {
  png_uint_32 n_bytes = 0;
  png_bytep exif = nullptr;
  if (png_get_eXIf_1(reader.png, reader.info, &n_bytes, &exif) == 0) return 1;
  return exif_orientation({exif, n_bytes});
}

}  // namespace

std::expected<Head, Complaint> png_head(Bytes file) {
  Reader reader(file);
  if (reader.info == nullptr) return std::unexpected("cannot be read: there is no memory for it");
  if (!read_info(reader)) return std::unexpected(reader.complaint());
  return Head{Format::kPng, png_get_image_width(reader.png, reader.info),
              png_get_image_height(reader.png, reader.info)};
}

std::expected<Pixels, Complaint> decode_png(Bytes file, const Head& head) {
  Reader reader(file);
  if (reader.info == nullptr) return std::unexpected("cannot be read: there is no memory for it");
  if (!read_info(reader)) return std::unexpected(reader.complaint());
  std::vector<std::uint8_t> rgba(std::size_t{4} * head.width * head.height);
  std::vector<png_bytep> rows(head.height);
  for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = rgba.data() + 4 * y * head.width;
  port::between_steps();
  if (!read_rgba(reader, rows.data())) return std::unexpected(reader.complaint());
  port::between_steps();
  return upright(on_white(rgba, head.width, head.height), orientation(reader));
}

}  // namespace coppice::image
