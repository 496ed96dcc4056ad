// What must be true of a folder before its pieces are used, and what lies in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <string>

#include "tier/disk/file_system.h"
#include "tier/name.h"

namespace coppice::tier {

struct LockedFolder {
  OpenFile lock;              ///< held until it goes
  std::uint64_t lock_id = 0;  ///< Status::id of the lock's file
};

/// Makes the folder where it isn't there, and locks it. Error: the end of a sentence that begins with the folder's
/// name. Refused are folders of other users, those that others may write to, and those with other things in them: their
/// owner didn't mean them.
std::expected<LockedFolder, std::string> lock_folder(FileSystem& files);

/// The lock is this process's still: nobody removed or replaced its file. True where the system doesn't tell.
bool still_locked(FileSystem& files, std::uint64_t lock_id);

inline constexpr std::size_t kMostBad = 8;  ///< damaged files that are kept

struct FolderContents {
  std::size_t bad = 0;  ///< damaged files that are kept
  std::uint64_t bad_bytes = 0;
  std::size_t strange = 0;  ///< links, other users' files, what has no piece's name: left alone
};

/// Told each piece; false: that's enough.
using EachPiece = std::function<bool(const Name& name, const FileSystem::Status& status)>;

/// Removes what was never finished, and tells each piece, in no order. Error: of the system; ECANCELED: it was told
/// enough.
Result<FolderContents> scan_folder(FileSystem& files, const EachPiece& piece);
/// The same, and nothing is changed: for those who don't hold the lock.
Result<FolderContents> look_through(FileSystem& files, const EachPiece& piece);

/// "No space left on device".
std::string error_text(int error);

}  // namespace coppice::tier
