// FileSystem: all that the disk store asks of the system, so that a simulated one can stand in its place
// (tests/tier/disk/simulated_disk.h): real files are real_files.h. Of one folder, the root; paths are relative to it,
// such as "kv/a/NAME", and "" is the root itself.
//
// Thread-safe, once open_root() has succeeded. Nothing throws; an error is the system's number (errno). No link is ever
// followed beneath the root, and what is made is for this user alone.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace coppice::tier {

template <class T>
using Result = std::expected<T, int>;

class FileSystem {
 public:
  using Clock = std::chrono::steady_clock;
  /// An open file. Not negative.
  using Number = int;

  struct Status {
    std::uint64_t id = 0;  ///< equal ids: the same file
    bool is_file = false;  ///< a regular one: no link, no device
    bool is_folder = false;
    bool is_mine = false;  ///< this user is its owner
    bool is_read = false;  ///< others than the owner may read it, or what lies in it
    bool is_open = false;  ///< ... may write to it
    std::uint64_t bytes = 0;
    std::int64_t used = 0;  ///< its time of change, which touch() sets: seconds since 1970
  };
  /// Of the file system, in bytes.
  struct Room {
    std::uint64_t all = 0, free = 0;  ///< free for this user
  };

  virtual ~FileSystem() = default;

  /// The root, as people know it.
  virtual std::string name() const = 0;

  /// Opens the root, which may lie behind links: the operator names it. Makes it if it isn't there.
  virtual Result<Status> open_root() = 0;
  /// Nobody but the owner may read or enter the root.
  virtual Result<void> hide_root() = 0;
  /// An exclusive lock on a file, which is made if it isn't there; held until it is closed, or the process ends.
  /// EWOULDBLOCK: another has it.
  virtual Result<Number> lock(const std::string& path) = 0;

  virtual Result<void> make_folder(const std::string& path) = 0;
  /// Calls entry() for all that lies in a folder, in any order.
  virtual Result<void> list(const std::string& path, const std::function<void(std::string_view)>& entry) = 0;
  virtual Result<Status> status(const std::string& path) = 0;
  virtual Result<Status> status(Number file) = 0;
  virtual Result<Room> room() = 0;

  /// A new file, to write. EEXIST: there is one.
  virtual Result<Number> create(const std::string& path) = 0;
  virtual Result<Number> reopen(const std::string& path) = 0;  ///< one that is there, to write over
  virtual Result<Number> open(const std::string& path) = 0;    ///< to read
  virtual void close(Number file) noexcept = 0;

  /// How many bytes were written at `offset`, or read from there: at least 1, if `bytes` isn't empty, but at a file's
  /// end. Faster where memory, offset and length are whole kBufferAlignment (buffers.h): then they go past the system's
  /// cache.
  virtual Result<std::size_t> write(Number file, std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual Result<std::size_t> read(Number file, std::uint64_t offset, std::span<std::byte> into) = 0;
  virtual Result<void> set_length(Number file, std::uint64_t bytes) = 0;
  /// Nothing of what was written waits in the system's cache, where an error would be seen by nobody. It need not
  /// outlive a power loss.
  virtual Result<void> sync(Number file) = 0;
  /// It was used now.
  virtual Result<void> touch(Number file) = 0;

  /// Replaces `to` if it is there, at once.
  virtual Result<void> rename(const std::string& from, const std::string& to) = 0;
  virtual Result<void> remove(const std::string& path) = 0;

  virtual std::int64_t now() = 0;  ///< seconds since 1970
  virtual Clock::time_point ticks() = 0;
};

/// An open file that is closed at the end of its scope. Move-only.
class OpenFile {
 public:
  OpenFile() = default;
  OpenFile(FileSystem& files, FileSystem::Number number) : files_(&files), number_(number) {}
  OpenFile(OpenFile&& other) noexcept : files_(std::exchange(other.files_, nullptr)), number_(other.number_) {}
  OpenFile& operator=(OpenFile&& other) noexcept {
    std::swap(files_, other.files_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~OpenFile() {
    if (files_ != nullptr) files_->close(number_);
  }

  explicit operator bool() const { return files_ != nullptr; }
  FileSystem::Number number() const { return number_; }

 private:
  FileSystem* files_ = nullptr;
  FileSystem::Number number_ = -1;
};

}  // namespace coppice::tier
