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
  std::uint32_t text_bytes = 0, about_bytes = 0, origin_bytes = 0, sums_head = 0;
};
static_assert(sizeof(Header) == 112);

constexpr std::array<char, 8> kMagic = {'c', 'o', 'p', 'p', 'i', 'c', 'e', '\0'};
constexpr std::uint32_t kOrder = 0x01020304;
constexpr std::size_t kAlignment = 64;
constexpr std::size_t kChecksumAt = offsetof(Header, checksum), kChecksumEnd = kChecksumAt + sizeof(std::uint32_t);
constexpr std::uint32_t kAll = 0, kHead = 1;  // sums_head

/// of_text: bytes of text, origin and about.
std::size_t before_payload(std::size_t of_text) {
  return (sizeof(Header) + of_text + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t of_text(const Header& header) {
  return std::size_t{header.text_bytes} + header.origin_bytes + header.about_bytes;  // below 2^34
}

std::uint32_t checksum_of(std::span<const std::byte> piece) {
  return crc32c(piece.subspan(kChecksumEnd), crc32c(piece.first(kChecksumAt)));
}

void write_checksum(std::span<std::byte> piece, std::uint32_t sums_head) {
  Header header;
  std::memcpy(&header, piece.data(), sizeof header);
  header.sums_head = sums_head;
  std::memcpy(piece.data(), &header, sizeof header);
  const std::uint32_t checksum = checksum_of(sums_head == kHead ? piece.first(header.before_payload) : piece);
  std::memcpy(piece.data() + kChecksumAt, &checksum, sizeof checksum);
}

std::expected<Header, Flaw> read_header(std::span<const std::byte> bytes) {
  Header header;
  if (bytes.size() < sizeof header) return std::unexpected(Flaw::kLength);
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic) return std::unexpected(Flaw::kForeign);
  if (header.version != kPieceVersion || header.order != kOrder) return std::unexpected(Flaw::kVersion);
  return header;
}

}  // namespace

std::size_t piece_size(std::size_t text_bytes, std::size_t about_bytes, std::size_t payload_bytes,
                       std::size_t origin_bytes) {
  return before_payload(text_bytes + about_bytes + origin_bytes) + payload_bytes;
}

std::span<std::byte> begin_piece(std::span<std::byte> into, const Name& name, std::span<const std::byte> text,
                                 std::string_view about, std::size_t payload_bytes, std::span<const std::byte> origin) {
  COPPICE_ASSERT(into.size() == piece_size(text.size(), about.size(), payload_bytes, origin.size()) &&
                 about.size() <= kMostAbout && origin.size() <= kMostOrigin);
  const std::size_t before = before_payload(text.size() + about.size() + origin.size());
  const Header header{.magic = kMagic,
                      .version = kPieceVersion,
                      .order = kOrder,
                      .before_payload = static_cast<std::uint32_t>(before),
                      .payload_bytes = payload_bytes,
                      .name = name,
                      .text_bytes = static_cast<std::uint32_t>(text.size()),
                      .about_bytes = static_cast<std::uint32_t>(about.size()),
                      .origin_bytes = static_cast<std::uint32_t>(origin.size())};
  std::memcpy(into.data(), &header, sizeof header);
  const auto behind_text = std::ranges::copy(text, into.begin() + sizeof header).out;
  const auto behind_origin = std::ranges::copy(origin, behind_text).out;
  const auto behind_about = std::ranges::copy(std::as_bytes(std::span(about)), behind_origin).out;
  std::fill(behind_about, into.begin() + static_cast<std::ptrdiff_t>(before), std::byte{});
  return into.subspan(before);
}

void seal_piece(std::span<std::byte> piece) {
  write_checksum(piece, kAll);
}

void seal_head(std::span<std::byte> piece) {
  write_checksum(piece, kHead);
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
  const auto read = read_header(bytes);
  if (!read) return std::unexpected(read.error());
  const Header& header = *read;
  const bool fits = header.about_bytes <= kMostAbout && header.before_payload == before_payload(of_text(header)) &&
                    header.before_payload <= bytes.size() &&
                    header.payload_bytes == bytes.size() - header.before_payload;
  if (!fits) return std::unexpected(Flaw::kLength);
  const auto summed = header.sums_head == kHead ? bytes.first(header.before_payload) : bytes;
  if (header.checksum != checksum_of(summed) && !fault(Fault::kNoChecksum)) return std::unexpected(Flaw::kChecksum);
  if (name != nullptr && header.name != *name && !fault(Fault::kAnyName)) return std::unexpected(Flaw::kOtherName);
  const auto text = bytes.subspan(sizeof header, header.text_bytes);
  const auto origin = bytes.subspan(sizeof header + header.text_bytes, header.origin_bytes);
  const auto about = bytes.subspan(sizeof header + header.text_bytes + header.origin_bytes, header.about_bytes);
  return Piece{.name = header.name,
               .text = text,
               .origin = origin,
               .about = {reinterpret_cast<const char*>(about.data()), about.size()},
               .payload = bytes.subspan(header.before_payload)};
}

std::expected<PieceHead, Flaw> open_head(std::span<const std::byte> bytes) {
  const auto header = read_header(bytes);
  if (!header) return std::unexpected(header.error());
  if (sizeof(Header) + of_text(*header) > bytes.size()) return std::unexpected(Flaw::kLength);
  const auto behind = bytes.subspan(sizeof(Header));
  return PieceHead{.name = header->name,
                   .text = behind.first(header->text_bytes),
                   .origin = behind.subspan(header->text_bytes, header->origin_bytes)};
}

}  // namespace coppice::tier
