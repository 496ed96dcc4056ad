// GIF's first frame, by giflib.
#include <gif_lib.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "image/codecs.h"
#include "port/turn.h"

namespace coppice::image {
namespace {

constexpr const char* kUnreadable = "is a GIF file that is damaged or ends early";

struct Source {
  Bytes file;
  std::size_t at = 0;
};

int read(GifFileType* gif, GifByteType* to, int n_bytes) {
  auto* source = static_cast<Source*>(gif->UserData);
  const std::size_t n = std::min(static_cast<std::size_t>(n_bytes), source->file.size() - source->at);
  if (n > 0) std::memcpy(to, source->file.data() + source->at, n);
  source->at += n;
  return static_cast<int>(n);
}

struct Close {
  void operator()(GifFileType* gif) const { DGifCloseFile(gif, nullptr); }
};
using Gif = std::unique_ptr<GifFileType, Close>;

/// Goes to the first frame's description. transparent: the colour that shows what lies behind, -1: none.
bool find_frame(GifFileType* gif, int& transparent) {
  transparent = -1;
  GifRecordType kind = UNDEFINED_RECORD_TYPE;
  while (DGifGetRecordType(gif, &kind) == GIF_OK) {
    if (kind == IMAGE_DESC_RECORD_TYPE) return DGifGetImageDesc(gif) == GIF_OK;
    if (kind != EXTENSION_RECORD_TYPE) return false;
    int code = 0;
    GifByteType* block = nullptr;
    if (DGifGetExtension(gif, &code, &block) != GIF_OK) return false;
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (code == GRAPHICS_EXT_FUNC_CODE && DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK) {
        transparent = control.TransparentColor;
      }
      if (DGifGetExtensionNext(gif, &block) != GIF_OK) return false;
    }
  }
  return false;
}

/// A line of the frame into its place on the canvas; what lies beyond it is cut.
void draw(const std::vector<GifPixelType>& line, const ColorMapObject& colours, int transparent, std::size_t left,
          std::size_t width, std::uint8_t* row) {
  for (std::size_t x = 0; x < line.size() && left + x < width; ++x) {
    if (line[x] == transparent || line[x] >= colours.ColorCount) continue;
    const GifColorType& colour = colours.Colors[line[x]];
    std::uint8_t* pixel = row + 3 * (left + x);
    pixel[0] = colour.Red;
    pixel[1] = colour.Green;
    pixel[2] = colour.Blue;
  }
}

/// The canvas's rows in the order in which the frame's lines come (GIF89a, appendix E).
std::vector<std::size_t> line_order(std::size_t n_lines, bool interlaced) {
  std::vector<std::size_t> order;
  order.reserve(n_lines);
  struct Pass {
    std::size_t first, step;
  };
  static constexpr Pass kInterlaced[] = {{0, 8}, {4, 8}, {2, 4}, {1, 2}};
  static constexpr Pass kPlain[] = {{0, 1}};
  for (const Pass& pass : interlaced ? std::span<const Pass>(kInterlaced) : std::span<const Pass>(kPlain)) {
    for (std::size_t y = pass.first; y < n_lines; y += pass.step) order.push_back(y);
  }
  return order;
}

}  // namespace

std::expected<Head, Complaint> gif_head(Bytes file) {
  if (file.size() < 10) return std::unexpected(kUnreadable);
  const auto number = [&](std::size_t at) { return static_cast<std::uint32_t>(file[at] | file[at + 1] << 8); };
  return Head{Format::kGif, number(6), number(8)};
}

std::expected<Pixels, Complaint> decode_gif(Bytes file, const Head& head) {
  Source source{.file = file};
  const Gif gif(DGifOpen(&source, read, nullptr));
  int transparent = -1;
  if (!gif || !find_frame(gif.get(), transparent)) return std::unexpected(kUnreadable);
  const GifImageDesc& frame = gif->Image;
  const ColorMapObject* colours = frame.ColorMap != nullptr ? frame.ColorMap : gif->SColorMap;
  if (colours == nullptr || frame.Width <= 0 || frame.Height <= 0 || frame.Left < 0 || frame.Top < 0)
    return std::unexpected(kUnreadable);
  // The limit of pixels was held against the canvas.
  if (static_cast<std::uint32_t>(frame.Width) > head.width || static_cast<std::uint32_t>(frame.Height) > head.height) {
    return std::unexpected("is a GIF file whose first frame is larger than its canvas");
  }
  Pixels pixels{.width = head.width, .height = head.height};
  pixels.rgb.assign(std::size_t{3} * head.width * head.height, 0xFF);
  std::vector<GifPixelType> line(static_cast<std::size_t>(frame.Width));
  for (const std::size_t y : line_order(static_cast<std::size_t>(frame.Height), frame.Interlace)) {
    if (DGifGetLine(gif.get(), line.data(), frame.Width) != GIF_OK) return std::unexpected(kUnreadable);
    const std::size_t row = static_cast<std::size_t>(frame.Top) + y;
    if (row < head.height) {
      draw(line, *colours, transparent, static_cast<std::size_t>(frame.Left), head.width,
           &pixels.rgb[3 * row * head.width]);
    }
    if (y % 256 == 0) port::between_steps();
  }
  return pixels;
}

}  // namespace coppice::image
