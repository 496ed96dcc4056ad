#include "server/api/base/picture_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "server/base/request_error.h"

namespace coppice::server {

namespace {

vision::Detail detail_of(const JsonFields& f) {
  const std::string detail = f.string("detail").value_or("auto");
  if (detail == "low") return vision::Detail::kLow;
  if (detail != "auto" && detail != "high" && detail != "original")
    throw RequestError::bad_field(f.path("detail"), R"(must be "auto", "low", "high" or "original")");
  return vision::Detail::kAuto;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

bool is_remote(std::string_view url) {
  constexpr std::size_t kScheme = 8;
  const std::string begin = lower(url.substr(0, kScheme));
  return begin.starts_with("http://") || begin.starts_with("https://");
}

constexpr std::uint8_t kNoDigit = 255, kBlank = 254;

constexpr std::array<std::uint8_t, 256> kDigits = [] {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (unsigned char c = 0; c < 26; ++c) {
    digits['A' + c] = c;
    digits['a' + c] = static_cast<std::uint8_t>(26 + c);
  }
  for (unsigned char c = 0; c < 10; ++c) digits['0' + c] = static_cast<std::uint8_t>(52 + c);
  digits['+'] = digits['-'] = 62;
  digits['/'] = digits['_'] = 63;
  for (const unsigned char c : {' ', '\t', '\r', '\n'}) digits[c] = kBlank;
  return digits;
}();

}  // namespace

std::optional<std::vector<std::uint8_t>> from_base64(std::string_view text) {
  while (!text.empty() && (text.back() == '=' || kDigits[static_cast<unsigned char>(text.back())] == kBlank))
    text.remove_suffix(1);
  std::vector<std::uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  std::uint32_t held = 0;
  int bits = 0;
  std::size_t n = 0;
  for (const char c : text) {
    const std::uint8_t digit = kDigits[static_cast<unsigned char>(c)];
    if (digit == kBlank) continue;
    if (digit == kNoDigit) return std::nullopt;
    held = (held << 6) | digit;
    bits += 6;
    ++n;
    if (bits < 8) continue;
    bits -= 8;
    bytes.push_back(static_cast<std::uint8_t>(held >> bits));
  }
  if (n % 4 == 1) return std::nullopt;
  return bytes;
}

std::string unsupported_part(const std::string& type) {
  for (const char* kind : {"audio", "video"})
    if (type.contains(kind)) return fmt::format("\"{}\": {} is not supported, only text and images are", type, kind);
  if (PictureFields::is_picture(type)) return fmt::format("\"{}\" is not supported here, only text is", type);
  return fmt::format("\"{}\" is not supported, only text and images are", type);
}

void PictureFields::check_sees(const std::string& path) const {
  if (!sees())
    throw RequestError::unsupported(path, "this model sees no images: it is served without a projector (--mmproj)");
}

void PictureFields::count(const std::string& path) {
  check_sees(path);
  if (++n_ > most_) throw RequestError::bad_field(path, fmt::format("at most {} images in a request", most_));
}

PromptPictures::File PictureFields::made(std::string_view base64, vision::Detail detail, const std::string& path) {
  auto bytes = from_base64(base64);
  if (!bytes || bytes->empty())
    throw RequestError::bad_field(path, "must hold an image file in base64", "invalid_image");
  return std::make_shared<const PictureFile>(*std::move(bytes), detail, path);
}

PromptPictures::File PictureFields::file(std::string_view base64, const std::string& path) {
  count(path);
  return made(base64, vision::Detail::kAuto, path);
}

PromptPictures::File PictureFields::from_url(std::string_view url, vision::Detail detail, const std::string& path) {
  if (is_remote(url)) return std::make_shared<const PictureFile>(std::string(url), detail, path);
  constexpr std::size_t kScheme = 5, kMostHead = 256;
  if (lower(url.substr(0, kScheme)) != "data:")
    throw RequestError::unsupported(path, "must be \"data:image/png;base64,...\", or an http or https URL");
  const std::size_t comma = url.substr(0, kMostHead).find(',');
  const std::string head = lower(url.substr(0, comma == url.npos ? 0 : comma));
  if (!head.ends_with(";base64"))
    throw RequestError::bad_field(path, "must be \"data:image/png;base64,...\"", "invalid_image");
  const std::string type = head.substr(kScheme, head.find(';') - kScheme);
  if (!type.empty() && !type.starts_with("image/") && type != "application/octet-stream")
    throw RequestError::unsupported(path, unsupported_part(type));
  return made(url.substr(head.size() + 1), detail, path);
}

std::optional<ContentPart> PictureFields::part(const JsonFields& f, const std::string& type) {
  if (!is_picture(type)) return std::nullopt;
  count(f.path("type"));
  const char* const name = type == "image" ? "source" : "image_url";
  const Json* value = f.find(name);
  const std::string path = f.path(name);
  if (value == nullptr && f.has("file_id"))
    throw RequestError::unsupported(f.path("file_id"), "there are no files here");
  if (value == nullptr) throw RequestError::bad_field(path, "is required", "missing_field");
  if (value->is_string()) {
    const auto& url = value->get_string();
    return ContentPart{.text = {}, .picture = from_url({url.data(), url.size()}, detail_of(f), path)};
  }
  const JsonFields inner(object_of(value, path), path + ".");
  if (type != "image") {
    const Json* url = inner.find("url");
    if (url == nullptr || !url->is_string())
      throw RequestError::bad_field(inner.path("url"), "must be a string", url ? "invalid_type" : "missing_field");
    const auto& text = url->get_string();
    return ContentPart{.text = {},
                       .picture = from_url({text.data(), text.size()}, detail_of(inner), inner.path("url"))};
  }
  const std::string kind = inner.required_string("type");
  if (kind == "url")
    return ContentPart{.text = {},
                       .picture = from_url(inner.required_string("url"), vision::Detail::kAuto, inner.path("url"))};
  if (kind != "base64") throw RequestError::unsupported(inner.path("type"), R"(only "base64" and "url" are supported)");
  const Json* data = inner.find("data");
  if (data == nullptr || !data->is_string())
    throw RequestError::bad_field(inner.path("data"), "must be a string", data ? "invalid_type" : "missing_field");
  const auto& text = data->get_string();
  return ContentPart{.text = {},
                     .picture = made({text.data(), text.size()}, vision::Detail::kAuto, inner.path("data"))};
}

}  // namespace coppice::server
