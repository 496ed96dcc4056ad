// Where pieces lie in a folder, and what a file's name says.
//
//   lock         held by the server that uses the folder; says by its existence that the folder is a cache
//   new/N        what is being written
//   kv/a/NAME    a piece, whole (tier/piece.h); "a" is the first digit of Name::piece
//   bad/NAME     a few of those that were damaged, for people to look at
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tier/buffers.h"
#include "tier/name.h"

namespace coppice::tier {

inline constexpr int kSubfolders = 16;  ///< few: file systems lay them far apart
/// "kv/a". REQUIRES: 0 <= i < kSubfolders.
std::string subfolder(int i);
int subfolder_of(const Name& name);
std::string path_of(const Name& name);
/// None: it is no piece's.
std::optional<Name> name_in(std::string_view file_name);

/// What a piece of so many bytes takes of the disk: its pages, and one for what the file system keeps of a file.
constexpr std::uint64_t disk_bytes(std::uint64_t piece_bytes) {
  return (piece_bytes + 2 * kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

}  // namespace coppice::tier
