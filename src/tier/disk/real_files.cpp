#include "tier/disk/real_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "check/assert.h"
#include "port/files.h"

namespace coppice::tier {

namespace {

const int kDirect = port::direct_flag();

/// Calls again what a signal interrupted.
template <class Call>
auto uninterrupted(const Call& call) {
  decltype(call()) result;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

std::unexpected<int> last_error() {
  return std::unexpected(errno);
}

Result<void> done(int result) {
  if (result != 0) return last_error();
  return {};
}

FileSystem::Status status_of(const struct stat& found) {
  return {.id = found.st_ino,
          .is_file = S_ISREG(found.st_mode),
          .is_folder = S_ISDIR(found.st_mode),
          .is_mine = found.st_uid == ::geteuid(),
          .is_read = (found.st_mode & (S_IRWXG | S_IRWXO)) != 0,
          .is_open = (found.st_mode & (S_IWGRP | S_IWOTH)) != 0,
          .bytes = static_cast<std::uint64_t>(found.st_size),
          .used = found.st_mtime};
}

class RealFiles final : public FileSystem {
 public:
  explicit RealFiles(std::filesystem::path root) : path_(std::move(root)) {}
  ~RealFiles() override {
    if (root_ >= 0) ::close(root_);
  }
  RealFiles(const RealFiles&) = delete;
  RealFiles& operator=(const RealFiles&) = delete;

  std::string name() const override { return path_.string(); }

  Result<Status> open_root() override {
    if (root_ >= 0) ::close(std::exchange(root_, -1));
    if (::mkdir(path_.c_str(), S_IRWXU) != 0 && errno != EEXIST) return last_error();
    root_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return root_ < 0 ? Result<Status>(last_error()) : status(root_);
  }

  Result<void> hide_root() override { return done(::fchmod(root_, S_IRWXU)); }

  Result<Number> lock(const std::string& path) override {
    const auto file = opened(path, O_RDWR | O_CREAT);
    if (file && uninterrupted([&] { return ::flock(*file, LOCK_EX | LOCK_NB); }) != 0) {
      const int error = errno;
      ::close(*file);
      return std::unexpected(error);
    }
    return file;
  }

  Result<void> make_folder(const std::string& path) override { return done(::mkdirat(root_, path.c_str(), S_IRWXU)); }

  Result<void> list(const std::string& path, const std::function<void(std::string_view)>& entry) override {
    const auto folder = opened(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY);
    if (!folder) return std::unexpected(folder.error());
    const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(*folder), ::closedir);
    if (listing == nullptr) {
      ::close(*folder);
      return last_error();
    }
    for (;;) {
      errno = 0;
      const dirent* const next = ::readdir(listing.get());
      if (next == nullptr) return done(errno == 0 ? 0 : -1);
      const std::string_view name = next->d_name;
      if (name != "." && name != "..") entry(name);
    }
  }

  Result<Status> status(const std::string& path) override {
    struct stat found;
    if (::fstatat(root_, path.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) return last_error();
    return status_of(found);
  }
  Result<Status> status(Number file) override {
    struct stat found;
    if (::fstat(file, &found) != 0) return last_error();
    return status_of(found);
  }

  Result<Room> room() override {
    struct statvfs found;
    if (::fstatvfs(root_, &found) != 0) return last_error();
    return Room{.all = std::uint64_t{found.f_blocks} * found.f_frsize,
                .free = std::uint64_t{found.f_bavail} * found.f_frsize};
  }

  Result<Number> create(const std::string& path) override {
    return opened(path, kDirect | O_WRONLY | O_CREAT | O_EXCL);
  }
  Result<Number> reopen(const std::string& path) override { return opened(path, kDirect | O_WRONLY); }
  Result<Number> open(const std::string& path) override { return opened(path, kDirect | O_RDONLY | O_NONBLOCK); }
  void close(Number file) noexcept override { ::close(file); }

  Result<std::size_t> write(Number file, std::uint64_t offset, std::span<const std::byte> bytes) override {
    return directly(file, [&] { return ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset)); });
  }
  Result<std::size_t> read(Number file, std::uint64_t offset, std::span<std::byte> into) override {
    return directly(file, [&] { return ::pread(file, into.data(), into.size(), static_cast<off_t>(offset)); });
  }
  Result<void> set_length(Number file, std::uint64_t bytes) override {
    return done(uninterrupted([&] { return ::ftruncate(file, static_cast<off_t>(bytes)); }));
  }
  Result<void> sync(Number file) override {
    if (is_direct(file)) return {};
    return done(uninterrupted([&] { return port::sync_data(file); }));
  }
  Result<void> touch(Number file) override { return done(::futimens(file, nullptr)); }

  Result<void> rename(const std::string& from, const std::string& to) override {
    return done(::renameat(root_, from.c_str(), root_, to.c_str()));
  }
  Result<void> remove(const std::string& path) override { return done(::unlinkat(root_, path.c_str(), 0)); }

  std::int64_t now() override { return ::time(nullptr); }
  Clock::time_point ticks() override { return Clock::now(); }

 private:
  Result<Number> opened(const std::string& path, int flags) const {
    COPPICE_ASSERT(root_ >= 0);
    const auto open_with = [&](int all) {
      return uninterrupted([&] { return ::openat(root_, path.c_str(), all, S_IRUSR | S_IWUSR); });
    };
    flags |= O_NOFOLLOW | O_CLOEXEC;
    int file = open_with(flags);
    if (file < 0 && errno == EINVAL && (flags & kDirect) != 0) file = open_with(flags & ~(kDirect | O_CREAT | O_EXCL));
    if (file < 0 && errno == ENOENT && (flags & O_CREAT) != 0) file = open_with(flags & ~kDirect);
    return file < 0 ? Result<Number>(last_error()) : file;
  }

  static bool is_direct(Number file) { return kDirect != 0 && (::fcntl(file, F_GETFL) & kDirect) != 0; }

  /// A transfer past the system's cache, or through it where the file system can't do that, or not for this memory and
  /// place.
  template <class Call>
  static Result<std::size_t> directly(Number file, const Call& call) {
    auto n = uninterrupted(call);
    if (n < 0 && errno == EINVAL && is_direct(file)) {
      const int flags = ::fcntl(file, F_GETFL);
      if (::fcntl(file, F_SETFL, flags & ~kDirect) != 0) return last_error();
      n = uninterrupted(call);
    }
    return n < 0 ? Result<std::size_t>(last_error()) : static_cast<std::size_t>(n);
  }

  const std::filesystem::path path_;
  int root_ = -1;
};

}  // namespace

std::unique_ptr<FileSystem> make_real_files(std::filesystem::path root) {
  return std::make_unique<RealFiles>(std::move(root));
}

}  // namespace coppice::tier
