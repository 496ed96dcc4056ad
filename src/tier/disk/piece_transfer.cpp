#include "tier/disk/piece_transfer.h"

#include <algorithm>
#include <cerrno>
#include <tuple>
#include <utility>

#include "tier/disk/piece_path.h"
#include "tier/faults.h"
#include "tier/piece.h"

namespace coppice::tier {

Result<void> write_piece(FileSystem& files, const std::string& path, Buffer& piece, bool is_there) {
  auto number = is_there ? files.reopen(path) : files.create(path);
  if (!number && number.error() == EEXIST) {  // of a write that failed
    if (const auto removed = files.remove(path); !removed) return removed;
    number = files.create(path);
  }
  if (!number) return std::unexpected(number.error());
  const OpenFile file(files, *number);
  const std::size_t pages = (piece.size() + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
  const std::span<std::byte> bytes = piece.memory().first(pages);
  std::ranges::fill(bytes.subspan(piece.size()), std::byte{});
  for (std::size_t done = 0; done < bytes.size();) {
    const auto written = files.write(*number, done, bytes.subspan(done));
    if (!written) return std::unexpected(written.error());
    if (*written == 0) return std::unexpected(ENOSPC);
    done += *written;
    if (fault(Fault::kShortWriteIsWhole)) break;
  }
  if (const auto cut = files.set_length(*number, piece.size()); !cut) return cut;
  const auto safe = files.sync(*number);
  return fault(Fault::kUnsafeIsSafe) ? Result<void>() : safe;
}

namespace {

/// Up to the file's end, or into's. How many bytes.
Result<std::size_t> read_from(FileSystem& files, FileSystem::Number number, std::uint64_t offset,
                              std::span<std::byte> into) {
  std::size_t done = 0;
  while (done < into.size()) {
    const auto got = files.read(number, offset + done, into.subspan(done));
    if (!got) return std::unexpected(got.error());
    if (*got == 0) break;
    done += *got;
  }
  return done;
}

bool is_ours(const FileSystem::Status& status) {
  return fault(Fault::kLinkFollowed) || (status.is_file && status.is_mine && !status.is_open);
}

struct OurFile {
  OpenFile file;
  FileSystem::Status status;
};

/// ELOOP: it is not one that we wrote.
Result<OurFile> open_ours(FileSystem& files, const std::string& path) {
  const auto number = files.open(path);
  if (!number) return std::unexpected(number.error());
  OpenFile file(files, *number);
  const auto status = files.status(*number);
  if (!status) return std::unexpected(status.error());
  if (!is_ours(*status)) return std::unexpected(ELOOP);
  return OurFile{std::move(file), *status};
}

}  // namespace

Result<PieceEnds> read_ends(FileSystem& files, const std::string& path, std::span<std::byte> into,
                            std::size_t end_bytes) {
  const auto ours = open_ours(files, path);
  if (!ours) return std::unexpected(ours.error());
  const auto& [file, status] = *ours;
  if (status.bytes < end_bytes) return std::unexpected(EBADMSG);
  const std::span<std::byte> head = into.first(kHeadBytes), behind = into.subspan(kHeadBytes);
  const auto begun = read_from(files, file.number(), 0, head);
  if (!begun) return std::unexpected(begun.error());
  PieceEnds ends{.head = head.first(std::min<std::size_t>(*begun, status.bytes - end_bytes)), .end = {}};
  if (end_bytes == 0) return ends;
  const std::uint64_t at = status.bytes - end_bytes, page = at / kBufferAlignment * kBufferAlignment;
  const auto ended = read_from(files, file.number(), page, behind.first(2 * kBufferAlignment));
  if (!ended) return std::unexpected(ended.error());
  if (*ended != status.bytes - page) return std::unexpected(EBADMSG);
  ends.end = behind.subspan(at - page, end_bytes);
  return ends;
}

Result<std::size_t> read_piece(FileSystem& files, const std::string& path, std::uint64_t bytes_of_disk,
                               std::span<std::byte> into, bool stamp) {
  const auto ours = open_ours(files, path);
  if (!ours) return std::unexpected(ours.error());
  const auto& [file, status] = *ours;
  if (disk_bytes(status.bytes) != bytes_of_disk || status.bytes > into.size()) return std::unexpected(EBADMSG);
  for (std::size_t done = 0; done < status.bytes;) {
    const auto got = files.read(file.number(), done, into.subspan(done));
    if (!got) return std::unexpected(got.error());
    if (*got == 0) return std::unexpected(EBADMSG);
    done += *got;
    if (fault(Fault::kShortReadIsWhole)) break;
  }
  if (stamp) std::ignore = files.touch(file.number());  // else it is taken for older than it is
  return status.bytes;
}

}  // namespace coppice::tier
