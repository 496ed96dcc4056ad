// WebP by libwebp.
#include <webp/decode.h>
#include <webp/demux.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "image/codecs.h"
#include "image/orientation.h"
#include "port/turn.h"

namespace coppice::image {
namespace {

constexpr const char* kUnreadable = "is a WebP file that is damaged or ends early";

std::expected<WebPBitstreamFeatures, Complaint> read_features(Bytes file) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(file.data(), file.size(), &features) != VP8_STATUS_OK || features.width <= 0 ||
      features.height <= 0) {
    return std::unexpected(kUnreadable);
  }
  return features;
}

struct DeleteDemuxer {
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

/// The chunk of EXIF stands behind the pixels, so a file that ends early may lack it alone.
std::expected<Pixels, Complaint> held_upright(Pixels pixels, Bytes file) {
  const WebPData data{file.data(), file.size()};
  WebPDemuxState state = WEBP_DEMUX_PARSE_ERROR;
  const std::unique_ptr<WebPDemuxer, DeleteDemuxer> demuxer(WebPDemuxPartial(&data, &state));
  if (!demuxer || (WebPDemuxGetI(demuxer.get(), WEBP_FF_FORMAT_FLAGS) & EXIF_FLAG) == 0) return pixels;
  WebPChunkIterator chunk;
  if (WebPDemuxGetChunk(demuxer.get(), "EXIF", 1, &chunk) == 0) {
    if (state != WEBP_DEMUX_DONE) return std::unexpected(kUnreadable);
    return pixels;
  }
  const int orientation = exif_orientation({chunk.chunk.bytes, chunk.chunk.size});
  WebPDemuxReleaseChunkIterator(&chunk);
  return upright(std::move(pixels), orientation);
}

struct DeleteAnimation {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
};

std::expected<Pixels, Complaint> first_frame(Bytes file, const Head& head) {
  WebPAnimDecoderOptions options;
  if (WebPAnimDecoderOptionsInit(&options) == 0) return std::unexpected(kUnreadable);
  options.color_mode = MODE_RGBA;
  const WebPData data{file.data(), file.size()};
  const std::unique_ptr<WebPAnimDecoder, DeleteAnimation> decoder(WebPAnimDecoderNew(&data, &options));
  std::uint8_t* rgba = nullptr;
  int end_ms = 0;
  if (!decoder || WebPAnimDecoderGetNext(decoder.get(), &rgba, &end_ms) == 0) return std::unexpected(kUnreadable);
  return on_white({rgba, std::size_t{4} * head.width * head.height}, head.width, head.height);
}

}  // namespace

std::expected<Head, Complaint> webp_head(Bytes file) {
  const auto features = read_features(file);
  if (!features) return std::unexpected(features.error());
  return Head{Format::kWebp, static_cast<std::uint32_t>(features->width), static_cast<std::uint32_t>(features->height)};
}

std::expected<Pixels, Complaint> decode_webp(Bytes file, const Head& head) {
  const auto features = read_features(file);
  if (!features) return std::unexpected(features.error());
  port::between_steps();
  if (features->has_animation != 0) {
    auto frame = first_frame(file, head);
    if (!frame) return frame;
    return held_upright(*std::move(frame), file);
  }
  std::vector<std::uint8_t> rgba(std::size_t{4} * head.width * head.height);
  if (WebPDecodeRGBAInto(file.data(), file.size(), rgba.data(), rgba.size(), features->width * 4) == nullptr) {
    return std::unexpected(kUnreadable);
  }
  port::between_steps();
  return held_upright(on_white(rgba, head.width, head.height), file);
}

}  // namespace coppice::image
