// A piece's way to its file, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tier/buffers.h"
#include "tier/disk/file_system.h"

namespace coppice::tier {

/// Writes a new file, or over the one that `is_there`. What is behind piece.bytes() may be changed, too. After an error
/// a part of it may lie there.
Result<void> write_piece(FileSystem& files, const std::string& path, Buffer& piece, bool is_there);

/// How many bytes the piece has that lies there. `bytes_of_disk`: what it should take. `stamp`: it was used now. Errors
/// besides the system's: EBADMSG, it is shorter or longer, or doesn't fit; ELOOP, it is a link or another user's, or
/// others may write to it.
Result<std::size_t> read_piece(FileSystem& files, const std::string& path, std::uint64_t bytes_of_disk,
                               std::span<std::byte> into, bool stamp);

/// A piece's first bytes, and its last ones.
struct PieceEnds {
  std::span<std::byte> head, end;
};
inline constexpr std::size_t kMostEnd = kBufferAlignment;
/// Reads kHeadBytes (piece.h) of the piece that lies there, or as many as stand before its last `end_bytes`, and these.
/// Errors as above. REQUIRES: into.size() >= kHeadBytes + 2 * kBufferAlignment; end_bytes <= kMostEnd.
Result<PieceEnds> read_ends(FileSystem& files, const std::string& path, std::span<std::byte> into,
                            std::size_t end_bytes);

}  // namespace coppice::tier
