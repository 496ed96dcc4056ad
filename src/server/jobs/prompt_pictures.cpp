#include "server/jobs/prompt_pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "check/assert.h"
#include "server/base/random_name.h"
#include "server/base/request_error.h"
#include "server/jobs/generation_request.h"

namespace coppice::server {

namespace {

/// Letters, digits and underscores only, which no filter of a template changes.
constexpr std::string_view kMarkerBegin = "__picture_";
constexpr std::size_t kMarkerBytes = kMarkerBegin.size() + 32;

std::string ordinal(int n) {
  constexpr const char* kWords[] = {"first",   "second", "third", "fourth", "fifth",    "sixth",
                                    "seventh", "eighth", "ninth", "tenth",  "eleventh", "twelfth"};
  if (n <= static_cast<int>(std::size(kWords))) return kWords[n - 1];
  const bool teen = n / 10 % 10 == 1;
  const char* const ending = n % 10 == 1 ? "st" : n % 10 == 2 ? "nd" : n % 10 == 3 ? "rd" : "th";
  return fmt::format("{}{}", n, teen ? "th" : ending);
}

/// "messages[2].content[1].image_url.url" is "the third message"; "prompt.multimodal_data[1]" is "the prompt".
std::string message_of(std::string_view field) {
  const std::size_t bracket = field.find('[');
  const std::string_view list = field.substr(0, bracket);
  int index = 0;
  if (bracket == field.npos || list.contains('.') ||
      std::from_chars(field.data() + bracket + 1, field.data() + field.size(), index).ec != std::errc())
    return "the prompt";
  return fmt::format("the {} {}", ordinal(index + 1),
                     list == "messages" ? "message"
                     : list == "input"  ? "item"
                                        : "prompt");
}

RequestError refused(const PictureFile& file, const std::string& complaint) {
  return RequestError(400, fmt::format("'{}': the image {}", file.field, complaint), file.field, "invalid_image");
}

}  // namespace

PictureFile::PictureFile(std::vector<std::uint8_t> its_bytes, vision::Detail its_detail, std::string its_field)
    : bytes(std::move(its_bytes)),
      detail(its_detail),
      field(std::move(its_field)),
      marker(std::string(kMarkerBegin) + random_name()) {}

PictureFile::PictureFile(std::string its_url, vision::Detail its_detail, std::string its_field)
    : PictureFile(std::vector<std::uint8_t>(), its_detail, std::move(its_field)) {
  url = std::move(its_url);
}

void PromptPictures::add(File file) {
  by_marker_.emplace(file->marker, placed_.size());
  placed_.push_back({.file = std::move(file)});
}

void PromptPictures::add(std::span<const Message> messages) {
  for (const Message& message : messages)
    for (const ContentPart& part : message.content)
      if (part.picture) add(part.picture);
}

std::vector<PromptPictures::File> PromptPictures::missing() {
  std::vector<File> missing;
  for (Placed& placed : placed_) {
    if (!placed.is_there()) placed.fetched = pictures_->fetched().find(owner_, placed.file->url);
    if (!placed.is_there()) missing.push_back(placed.file);
  }
  return missing;
}

bool PromptPictures::look() {
  if (looked()) return true;
  Placed& next = placed_[n_looked_];
  COPPICE_ASSERT(next.is_there());
  auto seen = pictures_->look(next.bytes(), next.file->detail, owner_, payer_);
  if (!seen) throw refused(*next.file, seen.error());
  next.picture = *std::move(seen);
  next.wish = std::make_unique<vision::PictureWish>(*pictures_, *next.picture, owner_);
  ++n_looked_;
  return looked();
}

std::vector<PromptPictures::Cut> PromptPictures::cuts(std::string_view text) const {
  std::vector<Cut> cuts;
  std::size_t begin = 0;
  for (std::size_t at = 0; !empty() && (at = text.find(kMarkerBegin, at)) != text.npos;) {
    const auto named = by_marker_.find(text.substr(at, kMarkerBytes));
    if (named == by_marker_.end()) {
      ++at;
      continue;
    }
    cuts.push_back({.begin = begin, .end = at, .file = placed_[named->second].file});
    begin = at += kMarkerBytes;
  }
  cuts.push_back({.begin = begin, .end = text.size(), .file = nullptr});
  return cuts;
}

const vision::Picture& PromptPictures::picture(const File& file) const {
  const auto named = by_marker_.find(file->marker);
  COPPICE_ASSERT(named != by_marker_.end() && placed_[named->second].picture);
  return *placed_[named->second].picture;
}

/// Of the next one. REQUIRES: !encoded()
vision::Encoding& PromptPictures::encoding() {
  const Placed& next = placed_[n_encoded_];
  if (!encoding_) encoding_.emplace(*pictures_, next.bytes(), next.file->detail, next.picture, owner_, payer_);
  return *encoding_;
}

bool PromptPictures::take_kept() {
  while (!encoded() && encoding().take_kept()) end_encoding();
  return encoded();
}

bool PromptPictures::encode(const std::function<vision::Wanted()>& wanted) {
  if (encoded()) return true;
  const auto done = encoding().step(wanted);
  if (!done) throw refused(*placed_[n_encoded_].file, done.error());
  if (*done) end_encoding();
  return encoded();
}

/// REQUIRES: it has all rows.
void PromptPictures::end_encoding() {
  Placed& next = placed_[n_encoded_];
  auto rows = encoding_->rows().begin();
  for (const auto& part : next.picture->parts)
    if (const auto* piece = std::get_if<vision::Piece>(&part))
      media_[piece->medium.digest] = {.name = piece->medium, .embeddings = *rows++, .columns = piece->columns};
  encoding_.reset();
  next.wish.reset();
  ++n_encoded_;
}

void PromptPictures::check_all_in(std::string_view text) const {
  for (const Placed& placed : placed_)
    if (!text.contains(placed.file->marker))
      throw RequestError::bad_field(placed.file->field, "the model's chat template leaves this image out");
}

std::vector<PicturePlace> PromptPictures::places(kv::TextView text) const {
  std::vector<PicturePlace> places;
  const std::vector<kv::MediumSpan> spans = text.spans();
  auto span = spans.begin();
  std::map<std::string, int> of_message;
  for (const Placed& placed : placed_) {
    const std::string message = message_of(placed.file->field);
    const std::string name = fmt::format("the {} of {}", ordinal(++of_message[message]), message);
    PicturePlace place{.begin = -1, .end = -1, .name = name};
    for (const auto& part : placed.picture->parts) {
      const auto* piece = std::get_if<vision::Piece>(&part);
      if (piece == nullptr) continue;
      const auto found = std::find_if(span, spans.end(), [&](const auto& s) { return s.medium == piece->medium; });
      if (found == spans.end()) break;
      if (place.begin < 0) place.begin = found->first;
      place.end = found->end();
      span = std::next(found);
    }
    if (place.begin >= 0) places.push_back(std::move(place));
  }
  return places;
}

engine::Prompt PromptPictures::prompt(kv::TextView text) const {
  engine::Prompt prompt;
  std::size_t at = 0;
  const auto append_tokens = [&](std::size_t end) {
    if (end > at) prompt.append(text.subspan(at, end - at).tokens());
  };
  for (const kv::MediumSpan& span : text.spans()) {
    COPPICE_ASSERT(span.index == 0 && span.n == span.medium.rows);
    append_tokens(static_cast<std::size_t>(span.first));
    prompt.append(media_.at(span.medium.digest));
    at = static_cast<std::size_t>(span.end());
  }
  append_tokens(text.size());
  return prompt;
}

void append(const vision::Picture& picture, kv::Text& to) {
  for (const auto& part : picture.parts) {
    if (const auto* tokens = std::get_if<std::vector<kv::Token>>(&part)) {
      to.append(*tokens);
    } else {
      to.append(std::get<vision::Piece>(part).medium);
    }
  }
}

std::string with_public_markers(const std::string& text, const PromptPictures& pictures) {
  std::string shown;
  for (const auto& cut : pictures.cuts(text)) {
    shown += std::string_view(text).substr(cut.begin, cut.end - cut.begin);
    if (cut.file) shown += kPublicMarker;
  }
  return shown;
}

}  // namespace coppice::server
