#include "port/locked_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "port/files.h"

namespace coppice::port {

namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

LockedFile::LockedFile(const std::filesystem::path& path)
    : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
  if (file_ < 0) fail(path.c_str());
  if (::flock(file_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    ::close(file_);
    throw std::system_error(error, std::generic_category(), path.string());
  }
}

LockedFile::~LockedFile() {
  ::close(file_);
}

std::uint64_t LockedFile::size() const {
  struct stat found;
  if (::fstat(file_, &found) != 0) fail("fstat");
  return static_cast<std::uint64_t>(found.st_size);
}

std::size_t LockedFile::read(std::uint64_t at, std::span<char> into) const {
  std::size_t have = 0;
  while (have < into.size()) {
    const ssize_t n = ::pread(file_, into.data() + have, into.size() - have, static_cast<off_t>(at + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read");
    if (n == 0) break;
    have += static_cast<std::size_t>(n);
  }
  return have;
}

void LockedFile::append(std::span<const char> bytes) {
  if (::lseek(file_, 0, SEEK_END) < 0) fail("lseek");
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("write");
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

void LockedFile::empty() {
  if (::ftruncate(file_, 0) != 0) fail("ftruncate");
}

void LockedFile::sync() {
  if (sync_data(file_) != 0) fail("fsync");
}

}  // namespace coppice::port
