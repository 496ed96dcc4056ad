// PictureFields: pictures in a request's parts, each API's way to write them. What they hold is not looked at yet.
//
// Thread safety: none; one body's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/base/json_fields.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

class PictureFields {
 public:
  /// `most`: in the request; 0: the model sees none (ModelFacts).
  explicit PictureFields(int most) : most_(most) {}

  bool sees() const { return most_ > 0; }
  /// Throws RequestError where the model sees none.
  void check_sees(const std::string& path) const;

  /// {"type": "image_url", "image_url": {"url": "data:...", "detail"}}: OpenAI's chats, also with the URL for the
  /// object; {"type": "input_image", "image_url": "data:...", "detail"}: its Responses; {"type": "image", "source":
  /// {"type": "base64", "data"}}: Anthropic's. Where a URL is http's or https's the file is fetched later. None: the
  /// part is none of these. Throws RequestError: also where the model sees none, or there are too many.
  std::optional<ContentPart> part(const JsonFields& fields, const std::string& type);

  /// Base64 without a head. Throws RequestError.
  PromptPictures::File file(std::string_view base64, const std::string& path);

  static bool is_picture(std::string_view type) {
    return type == "image_url" || type == "input_image" || type == "image";
  }

 private:
  PromptPictures::File from_url(std::string_view url, vision::Detail detail, const std::string& path);
  PromptPictures::File made(std::string_view base64, vision::Detail detail, const std::string& path);
  void count(const std::string& path);

  int most_;
  int n_ = 0;
};

/// Why a part of this type is refused, for people: "audio is not supported".
std::string unsupported_part(const std::string& type);

/// Bytes of a text in base64, the usual alphabet or the one for URLs; white space and missing padding don't matter.
/// None: it is something else.
std::optional<std::vector<std::uint8_t>> from_base64(std::string_view text);

}  // namespace coppice::server
