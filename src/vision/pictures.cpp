#include "vision/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "check/assert.h"
#include "image/image_file.h"
#include "image/shrink.h"

namespace coppice::vision {
namespace {

/// A digest of parts that are framed by their lengths.
class Naming {
 public:
  Naming& add(std::span<const std::byte> bytes) {
    const std::uint64_t n = bytes.size();
    const auto length = std::as_bytes(std::span(&n, 1));
    all_.insert(all_.end(), length.begin(), length.end());
    all_.insert(all_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Naming& add(const kv::Digest& digest) { return add(std::as_bytes(std::span(digest))); }
  Naming& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  Naming& add(std::uint32_t number) { return add(std::as_bytes(std::span(&number, 1))); }
  kv::Digest digest() const { return kv::sha256(all_); }

 private:
  std::vector<std::byte> all_;
};

kv::Digest owned(const kv::Digest& digest, std::string_view owner) {
  return owner.empty() ? digest : Naming().add(owner).add(digest).digest();
}

std::vector<kv::Medium> media_of(const Picture& picture) {
  std::vector<kv::Medium> media;
  for (const auto& part : picture.parts)
    if (const auto* piece = std::get_if<Piece>(&part)) media.push_back(piece->medium);
  return media;
}

std::size_t bytes_of(const Picture& picture) {
  std::size_t bytes = sizeof(Picture);
  for (const auto& part : picture.parts) {
    bytes += sizeof(part);
    if (const auto* tokens = std::get_if<std::vector<kv::Token>>(&part)) bytes += tokens->size() * sizeof(kv::Token);
  }
  return bytes;
}

constexpr const char* kImpossible = "has a shape that this model can't look at";

thread_local bool decoding_forbidden = false;

}  // namespace

void forbid_decoding_here() {
  decoding_forbidden = true;
}

std::expected<image::Pixels, std::string> Pictures::decode(std::span<const std::uint8_t> file, Detail detail) {
  ++decoded_;
  auto pixels = image::decode(file, limits_.most_pixels);
  if (pixels && detail == Detail::kLow) return image::shrink(*std::move(pixels), kLowSide);
  return pixels;
}

std::expected<std::shared_ptr<const Picture>, std::string> Pictures::look(std::span<const std::uint8_t> file,
                                                                          Detail detail, std::string_view owner,
                                                                          std::string_view payer) {
  const auto how = static_cast<std::uint32_t>(detail);
  const kv::Digest name = owned(Naming().add(kv::sha256(std::as_bytes(file))).add(how).digest(), owner);
  if (auto known = pictures_.find(name)) return *known;
  if (decoding_forbidden) throw NotDecoded();
  const auto pixels = decode(file, detail);
  if (!pixels) return std::unexpected(pixels.error());
  const auto parts = projector_->layout(pixels->width, pixels->height);
  if (!parts || parts->empty()) return std::unexpected(kImpossible);
  const kv::Digest all = Naming()
                             .add(projector_->digest())
                             .add(pixels->width)
                             .add(pixels->height)
                             .add(kv::sha256(std::as_bytes(std::span(pixels->rgb))))
                             .digest();
  auto picture = std::make_shared<Picture>(Picture{.width = pixels->width, .height = pixels->height, .parts = {}});
  std::uint32_t place = 0;
  for (const auto& part : *parts) {
    if (const auto* tokens = std::get_if<std::vector<kv::Token>>(&part)) {
      picture->parts.emplace_back(*tokens);
      continue;
    }
    const auto& stretch = std::get<Stretch>(part);
    const kv::Medium medium{
        .digest = Naming().add(all).add(place++).digest(), .rows = stretch.n_rows, .whole = stretch.whole};
    picture->parts.emplace_back(Piece{.medium = medium, .columns = stretch.columns});
    sizes_.keep(medium.digest, fmt::format("{}x{}", picture->width, picture->height), 16, payer);
  }
  pictures_.keep(name, picture, bytes_of(*picture), payer);
  return picture;
}

Rows Pictures::kept(const kv::Medium& medium, std::string_view owner) {
  return rows_.find(owned(medium.digest, owner)).value_or(nullptr);
}

PictureWish::PictureWish(Pictures& pictures, const Picture& picture, std::string_view owner) : pictures_(pictures) {
  for (const kv::Medium& medium : media_of(picture)) media_.push_back(owned(medium.digest, owner));
  pictures_.add_wishes(media_);
}

PictureWish::~PictureWish() {
  pictures_.remove_wishes(media_);
}

void Pictures::add_wishes(std::span<const kv::Digest> media) {
  const check::Lock lock(mutex_);
  wished_.insert(media.begin(), media.end());
}

void Pictures::remove_wishes(std::span<const kv::Digest> media) {
  const check::Lock lock(mutex_);
  for (const kv::Digest& medium : media) wished_.erase(wished_.find(medium));
}

int Pictures::count_wishes(const kv::Medium& medium, std::string_view owner) {
  const check::Lock lock(mutex_);
  return static_cast<int>(wished_.count(owned(medium.digest, owner)));
}

void Pictures::forget() {
  pictures_.clear();
  rows_.clear();
  sizes_.clear();
}

std::string Pictures::size_text(const kv::Digest& medium) {
  return sizes_.find(medium).value_or("");
}

int Pictures::longest_whole() const {
  const auto longest_in = [this](std::uint32_t width, std::uint32_t height) {
    int longest = 0;
    const auto parts = projector_->layout(width, height);
    if (!parts) return longest;
    for (const auto& part : *parts) {
      const auto* stretch = std::get_if<Stretch>(&part);
      if (stretch != nullptr && stretch->whole) longest = std::max(longest, stretch->n_rows);
    }
    return longest;
  };
  constexpr std::uint32_t kSide = 1U << 14;  // so large that each family makes it as small as it may be
  int longest = longest_in(kSide, kSide), shortest = longest;
  if (longest == 0) return 0;
  // Where pictures keep their shape, it decides how near they come to the most: 28 x 40 does, 33 x 33 doesn't.
  for (std::uint32_t other = kSide; other >= kSide / 16; other -= other / 128) {
    for (const int rows : {longest_in(kSide, other), longest_in(other, kSide)}) {
      longest = std::max(longest, rows);
      shortest = std::min(shortest, rows);
    }
  }
  return longest == shortest ? longest : longest + longest / 64;  // a shape between those that were tried has some more
}

PictureFigures Pictures::figures() const {
  return {.decoded = decoded_,
          .encoded = encoded_,
          .found = found_,
          .encode_seconds = static_cast<double>(encode_nanoseconds_) * 1e-9,
          .kept_bytes = rows_.bytes()};
}

Encoding::Encoding(Pictures& pictures, std::span<const std::uint8_t> file, Detail detail,
                   std::shared_ptr<const Picture> picture, std::string_view owner, std::string_view payer)
    : pictures_(pictures),
      file_(file),
      detail_(detail),
      picture_(std::move(picture)),
      owner_(owner),
      payer_(payer),
      media_(media_of(*picture_)) {}

bool Encoding::take_kept() {
  while (rows_.size() < media_.size()) {
    Rows known = pictures_.kept(media_[rows_.size()], owner_);
    if (!known) return false;
    ++pictures_.found_;
    rows_.push_back(std::move(known));
  }
  sources_.reset();
  return true;
}

std::expected<bool, std::string> Encoding::step(const std::function<Wanted()>& wanted) {
  if (take_kept()) return true;
  if (!sources_) {
    const auto pixels = pictures_.decode(file_, detail_);
    if (!pixels) return std::unexpected(pixels.error());
    const auto parts = pictures_.projector_->prepare(*pixels);
    if (!parts) return std::unexpected(kImpossible);
    sources_.emplace();
    for (const auto& part : *parts)
      if (const auto* stretch = std::get_if<Stretch>(&part)) sources_->push_back(*stretch);
    COPPICE_ASSERT(sources_->size() == media_.size());
  }
  const kv::Medium& medium = media_[rows_.size()];
  Stretch& source = (*sources_)[rows_.size()];
  COPPICE_ASSERT(source.n_rows == medium.rows);
  const auto start = std::chrono::steady_clock::now();
  auto rows = pictures_.projector_->encode(source, [&] {
    const Wanted who = wanted();
    return who == Wanted::kByNobody || (who == Wanted::kByOthers && pictures_.count_wishes(medium, owner_) <= 1);
  });
  pictures_.encode_nanoseconds_ += static_cast<std::uint64_t>((std::chrono::steady_clock::now() - start).count());
  if (!rows) return false;
  ++pictures_.encoded_;
  source.chunk = nullptr;
  const std::size_t bytes = rows->size() * sizeof(float);
  rows_.push_back(std::make_shared<const std::vector<float>>(*std::move(rows)));
  pictures_.rows_.keep(owned(medium.digest, owner_), rows_.back(), bytes, payer_);
  return take_kept();
}

}  // namespace coppice::vision
