// What lies in a folder of pieces, for people. A server may be using it: nothing is changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tier/disk/file_system.h"
#include "tier/disk/locked_folder.h"

namespace coppice::tier {

struct ModelPieces {
  std::string id;     ///< of Name::model, in hexadecimal
  std::string about;  ///< as one of its pieces says; empty: none says it, or all are sealed
  std::size_t n = 0;
  std::uint64_t bytes = 0;                     ///< of the disk
  std::int64_t first_used = 0, last_used = 0;  ///< seconds since 1970
};

struct FolderReport {
  std::vector<ModelPieces> models;  ///< the largest first
  FolderContents contents;
  bool in_use = false;  ///< a server has locked it
};

/// Error: the end of a sentence that begins with the folder's name.
std::expected<FolderReport, std::string> report_folder(FileSystem& files);

struct CheckedPieces {
  std::size_t whole = 0, damaged = 0;
  std::size_t sealed = 0;   ///< with a secret (tier/seal.h): nobody without it can say more
  std::uint64_t bytes = 0;  ///< that were read
};
/// Reads each piece, and tells those that don't open: the file's path in the folder, and what is amiss.
std::expected<CheckedPieces, std::string> check_folder(
    FileSystem& files, const std::function<void(const std::string& path, std::string_view why)>& damaged);

}  // namespace coppice::tier
