#include "tier/piece.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "check/assert.h"
#include "tier/crc32c.h"
#include "tier/faults.h"

namespace coppice::tier {

namespace {

static_assert(std::endian::native == std::endian::little, "pieces are written as they lie in memory");

struct Header {
  std::array<char, 8> magic{};
  std::uint32_t version = 0, order = 0, checksum = 0, before_payload = 0;
  std::uint64_t payload_bytes = 0;
  Name name;
  std::uint32_t text_bytes = 0, about_bytes = 0;
};
static_assert(sizeof(Header) == 104);

constexpr std::array<char, 8> kMagic = {'c', 'o', 'p', 'p', 'i', 'c', 'e', '\0'};
constexpr std::uint32_t kOrder = 0x01020304;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kChecksumAt = offsetof(Header, checksum), kChecksumEnd = kChecksumAt + sizeof(std::uint32_t);

std::size_t before_payload(std::size_t text_bytes, std::size_t about_bytes) {
  return (sizeof(Header) + text_bytes + about_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint32_t checksum_of(std::span<const std::byte> piece) {
  return crc32c(piece.subspan(kChecksumEnd), crc32c(piece.first(kChecksumAt)));
}

}  // namespace

std::size_t piece_size(std::size_t text_bytes, std::size_t about_bytes, std::size_t payload_bytes) {
  return before_payload(text_bytes, about_bytes) + payload_bytes;
}

std::span<std::byte> begin_piece(std::span<std::byte> into, const Name& name, std::span<const std::byte> text,
                                 std::string_view about, std::size_t payload_bytes) {
  COPPICE_ASSERT(into.size() == piece_size(text.size(), about.size(), payload_bytes) && about.size() <= kMostAbout);
  const std::size_t before = before_payload(text.size(), about.size());
  const Header header{.magic = kMagic,
                      .version = kPieceVersion,
                      .order = kOrder,
                      .before_payload = static_cast<std::uint32_t>(before),
                      .payload_bytes = payload_bytes,
                      .name = name,
                      .text_bytes = static_cast<std::uint32_t>(text.size()),
                      .about_bytes = static_cast<std::uint32_t>(about.size())};
  std::memcpy(into.data(), &header, sizeof header);
  const auto behind_text = std::ranges::copy(text, into.begin() + sizeof header).out;
  const auto behind_about = std::ranges::copy(std::as_bytes(std::span(about)), behind_text).out;
  std::fill(behind_about, into.begin() + static_cast<std::ptrdiff_t>(before), std::byte{});
  return into.subspan(before);
}

void seal_piece(std::span<std::byte> piece) {
  const std::uint32_t checksum = checksum_of(piece);
  std::memcpy(piece.data() + kChecksumAt, &checksum, sizeof checksum);
}

std::string_view to_string(Flaw flaw) {
  switch (flaw) {
    case Flaw::kForeign:
      return "it is no piece";
    case Flaw::kVersion:
      return "it is of another version";
    case Flaw::kLength:
      return "it is too short or too long";
    case Flaw::kChecksum:
      return "its checksum is wrong";
    case Flaw::kOtherName:
      return "it has another name";
  }
  return "";
}

std::expected<Piece, Flaw> open_piece(std::span<const std::byte> bytes, const Name* name) {
  Header header;
  if (bytes.size() < sizeof header) return std::unexpected(Flaw::kLength);
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) return std::unexpected(Flaw::kForeign);
  if (header.version != kPieceVersion || header.order != kOrder) return std::unexpected(Flaw::kVersion);
  const std::size_t texts = std::size_t{header.text_bytes} + header.about_bytes;  // below 2^33
  const bool fits = header.about_bytes <= kMostAbout && header.before_payload == before_payload(texts, 0) &&
                    header.before_payload <= bytes.size() &&
                    header.payload_bytes == bytes.size() - header.before_payload;
  if (!fits) return std::unexpected(Flaw::kLength);
  if (header.checksum != checksum_of(bytes) && !fault(Fault::kNoChecksum)) return std::unexpected(Flaw::kChecksum);
  if (name != nullptr && header.name != *name && !fault(Fault::kAnyName)) return std::unexpected(Flaw::kOtherName);
  const auto text = bytes.subspan(sizeof header, header.text_bytes);
  const auto about = bytes.subspan(sizeof header + header.text_bytes, header.about_bytes);
  return Piece{.name = header.name,
               .text = text,
               .about = {reinterpret_cast<const char*>(about.data()), about.size()},
               .payload = bytes.subspan(header.before_payload)};
}

}  // namespace coppice::tier
