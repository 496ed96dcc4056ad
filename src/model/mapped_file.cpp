#include "model/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "model/load_error.h"
#include "port/files.h"

namespace coppice::model {

namespace {

FileIdentity identity_in(const struct stat& st) {
  return {.device = static_cast<std::uint64_t>(st.st_dev),
          .inode = static_cast<std::uint64_t>(st.st_ino),
          .size = static_cast<std::uint64_t>(st.st_size),
          .changed_ns = port::changed_ns(st)};
}

}  // namespace

FileIdentity identity_of(int descriptor) {
  struct stat st{};
  return ::fstat(descriptor, &st) == 0 ? identity_in(st) : FileIdentity();
}

FileIdentity identity_of(const std::string& path) {
  struct stat st{};
  return ::stat(path.c_str(), &st) == 0 ? identity_in(st) : FileIdentity();
}

MappedFile::MappedFile(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw LoadError(fmt::format("cannot open {}: {}", path, std::strerror(errno)));
  struct stat st{};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size == 0) {
    ::close(fd);
    throw LoadError(fmt::format("{} is not a file with anything in it", path));
  }
  const auto size = static_cast<std::size_t>(st.st_size);
  identity_ = identity_of(fd);
  void* p = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (p == MAP_FAILED) throw LoadError(fmt::format("cannot map {}: {}", path, std::strerror(error)));
  bytes_ = {static_cast<const std::byte*>(p), size};
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

void MappedFile::let_go(std::size_t offset, std::size_t size) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t begin = (offset + page - 1) / page * page;
  const std::size_t end = (offset + size) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(bytes_.data()) + begin, end - begin, MADV_DONTNEED);
}

}  // namespace coppice::model
