#include "tier/disk/locked_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tier/disk/piece_path.h"
#include "tier/faults.h"

namespace coppice::tier {

namespace {

/// Whether it is marked as a cache, or nothing lies in it but what one has. Error: of the system.
Result<bool> is_cache(FileSystem& files) {
  // What servers keep beside pieces counts, and the folder that lies in a disk's own root.
  constexpr std::string_view kKnown[] = {"new", "bad", "kv", "model-hashes", "responses", "lost+found"};
  bool marked = false, all_known = true;
  const auto listed = files.list("", [&](std::string_view entry) {
    marked = marked || entry == "lock";
    all_known = all_known && std::ranges::find(kKnown, entry) != std::end(kKnown);
  });
  if (!listed) return std::unexpected(listed.error());
  return marked || all_known;
}

/// "": it may be used.
std::string objection(FileSystem& files, const FileSystem::Status& root) {
  if (!root.is_folder) return "is no folder";
  if (!root.is_mine) return "belongs to another user";
  if (root.is_open) return "can be written to by others: chmod 700";
  const Result<bool> cache = is_cache(files);
  if (!cache) return "can't be listed: " + error_text(cache.error());
  if (!*cache) return "holds other things than a cache: give an empty folder, or one that isn't there";
  if (root.is_read) {
    if (const auto hidden = files.hide_root(); !hidden)
      return "can't be closed to others: " + error_text(hidden.error());
  }
  return "";
}

/// A folder of this user, made if it isn't there.
Result<void> ensure_folder(FileSystem& files, const std::string& path) {
  auto status = files.status(path);
  if (!status && status.error() == ENOENT) {
    if (const auto made = files.make_folder(path); !made) return made;
    status = files.status(path);
  }
  if (!status) return std::unexpected(status.error());
  if (!status->is_folder || !status->is_mine) return std::unexpected(ENOTDIR);
  return {};
}

Result<std::vector<std::string>> names_in_folder(FileSystem& files, const std::string& path) {
  std::vector<std::string> names;
  const auto listed = files.list(path, [&](std::string_view name) { names.emplace_back(name); });
  if (!listed) return std::unexpected(listed.error());
  return names;
}

/// Removes all but so many of a folder's files.
Result<void> leave_files(FileSystem& files, const std::string& folder, std::size_t n) {
  const auto names = names_in_folder(files, folder);
  if (!names) return std::unexpected(names.error());
  for (std::size_t i = n; i < names->size(); ++i) {
    if (const auto removed = files.remove(folder + "/" + (*names)[i]); !removed && removed.error() != ENOENT)
      return removed;
  }
  return {};
}

bool is_piece(const FileSystem::Status& status) {
  if (fault(Fault::kLinkFollowed)) return true;
  return status.is_file && status.is_mine && !status.is_open;
}

}  // namespace

std::expected<LockedFolder, std::string> lock_folder(FileSystem& files) {
  const auto root = files.open_root();
  if (!root) return std::unexpected("can't be opened: " + error_text(root.error()));
  if (std::string why = objection(files, *root); !why.empty()) return std::unexpected(std::move(why));
  const auto number = files.lock("lock");
  if (!number && number.error() == EWOULDBLOCK && !fault(Fault::kNoLock))
    return std::unexpected("is used by another server");
  if (!number && !fault(Fault::kNoLock)) return std::unexpected("can't be locked: " + error_text(number.error()));
  LockedFolder folder;
  if (number) {
    folder.lock = OpenFile(files, *number);
    const auto status = files.status(*number);
    if (!status) return std::unexpected("can't be locked: " + error_text(status.error()));
    folder.lock_id = status->id;
  }
  for (const char* name : {"new", "bad", "kv"}) {
    if (const auto made = ensure_folder(files, name); !made)
      return std::unexpected(fmt::format("has no folder {}: {}", name, error_text(made.error())));
  }
  for (int i = 0; i < kSubfolders; ++i) {
    if (const auto made = ensure_folder(files, subfolder(i)); !made)
      return std::unexpected(fmt::format("has no folder {}: {}", subfolder(i), error_text(made.error())));
  }
  return folder;
}

bool still_locked(FileSystem& files, std::uint64_t lock_id) {
  if (fault(Fault::kLostLockUnseen)) return true;
  const auto status = files.status("lock");
  return status ? status->id == lock_id : status.error() != ENOENT;
}

Result<FolderContents> scan_folder(FileSystem& files, const EachPiece& piece) {
  if (!fault(Fault::kAsideStays)) {
    if (const auto left = leave_files(files, "new", 0); !left) return std::unexpected(left.error());
  }
  if (const auto left = leave_files(files, "bad", kMostBad); !left) return std::unexpected(left.error());
  return look_through(files, piece);
}

Result<FolderContents> look_through(FileSystem& files, const EachPiece& piece) {
  FolderContents contents;
  const auto bad = names_in_folder(files, "bad");
  if (!bad) return std::unexpected(bad.error());
  for (const std::string& name : *bad) {
    ++contents.bad;
    if (const auto status = files.status("bad/" + name)) contents.bad_bytes += disk_bytes(status->bytes);
  }
  for (int i = 0; i < kSubfolders; ++i) {
    const auto names = names_in_folder(files, subfolder(i));
    if (!names) return std::unexpected(names.error());
    for (const std::string& file : *names) {
      const std::optional<Name> name = name_in(file);
      const bool is_there = name && subfolder_of(*name) == i;
      const auto status = is_there ? files.status(subfolder(i) + "/" + file) : Result<FileSystem::Status>();
      if (!status && status.error() == ENOENT) continue;
      if (!status) return std::unexpected(status.error());  // else nobody would count it
      if (!is_there || !is_piece(*status)) {
        ++contents.strange;
      } else if (!piece(*name, *status)) {
        return std::unexpected(ECANCELED);
      }
    }
  }
  return contents;
}

std::string error_text(int error) {
  return std::generic_category().message(error);
}

}  // namespace coppice::tier
