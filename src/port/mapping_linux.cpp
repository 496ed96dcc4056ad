#include <sys/mman.h>

#include <cerrno>

#include "port/mapping.h"

namespace coppice::port {

void prefer_huge_pages(std::span<std::byte> part) {
  ::madvise(part.data(), part.size(), MADV_HUGEPAGE);
}

void give_back_whole_pages(std::span<std::byte> pages) {
  ::madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

bool take_pages(std::span<std::byte> part) {
#ifdef MADV_POPULATE_WRITE
  while (::madvise(part.data(), part.size(), MADV_POPULATE_WRITE) != 0) {
    if (errno == EINVAL) return true;  // Linux before 5.14
    if (errno != EAGAIN && errno != EINTR) return false;
  }
#else
  static_cast<void>(part);
#endif
  return true;
}

}  // namespace coppice::port
