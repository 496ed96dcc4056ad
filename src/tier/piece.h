// Piece: the bytes of what a store holds under a name: a header, the text that it is of, then a page's bytes as they
// lie in the pool. Any thread.
//
// Header, little-endian
//    0  8   "coppice" and a zero byte
//    8  4   version of this format
//   12  4   0x01020304: numbers of another byte order don't read so
//   16  4   CRC-32C of all bytes but these four, or of those before the payload alone
//   20  4   bytes before the payload: a multiple of 64
//   24  8   bytes of the payload
//   32  64  the name
//   96  4   bytes of `text`
//  100  4   bytes of `about`
//  104  4   bytes of `origin`
//  108  4   what that is of: 0, all; 1, what is before the payload
//  112      text, origin, about, zeros up to the payload
//
// The name says the model, how bytes lie in a page, and all tokens before: who reads a piece compares the name and the
// text, nothing is trusted by its place alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <span>
#include <string_view>

#include "tier/name.h"

namespace coppice::tier {

/// Raised when the format changes. Pieces of another version don't open.
inline constexpr std::uint32_t kPieceVersion = 2;
inline constexpr std::size_t kMostAbout = 256;    ///< bytes
inline constexpr std::size_t kMostOrigin = 1024;  ///< bytes
inline constexpr std::size_t kHeadBytes = 8192;   ///< that mostly have all but the payload

/// What is in a piece. A view of its bytes.
struct Piece {
  Name name;
  std::span<const std::byte> text;  ///< symbols that it holds, as its writer spells them: compared, never read
  /// Where that text stands, as its writer spells it: for observers. Empty: it isn't told.
  std::span<const std::byte> origin;
  std::string_view about;  ///< for people: which model, which format
  std::span<const std::byte> payload;
};

/// What stands before the payload. A view.
struct PieceHead {
  Name name;
  std::span<const std::byte> text, origin;
};

/// Bytes of a piece with so much in it.
std::size_t piece_size(std::size_t text_bytes, std::size_t about_bytes, std::size_t payload_bytes,
                       std::size_t origin_bytes = 0);

/// Writes all but the payload and the checksum; returns the payload's place.
/// REQUIRES: into.size() is piece_size() of these; about.size() <= kMostAbout; origin.size() <= kMostOrigin.
std::span<std::byte> begin_piece(std::span<std::byte> into, const Name& name, std::span<const std::byte> text,
                                 std::string_view about, std::size_t payload_bytes,
                                 std::span<const std::byte> origin = {});

/// Writes the checksum: the piece is whole. REQUIRES: begin_piece() made it.
void seal_piece(std::span<std::byte> piece);
/// The same without a look at the payload: for a piece that stays in this process's memory, where its bytes are as safe
/// as in the pool. REQUIRES: as there.
void seal_head(std::span<std::byte> piece);

/// Why bytes are no piece.
enum class Flaw : std::uint8_t {
  kForeign,    ///< they don't begin like one
  kVersion,    ///< another version's, or another byte order's
  kLength,     ///< more or fewer than the header says
  kChecksum,   ///< what the checksum is of has changed since it was written
  kOtherName,  ///< another piece's
};
std::string_view to_string(Flaw flaw);

/// Looks at every byte, or after seal_head() at those before the payload. `name`: what it must be; null: any.
std::expected<Piece, Flaw> open_piece(std::span<const std::byte> bytes, const Name* name);

/// Looks at a piece's first bytes alone, so at no checksum: they may be anything. kLength: they are too few.
std::expected<PieceHead, Flaw> open_head(std::span<const std::byte> bytes);

}  // namespace coppice::tier
