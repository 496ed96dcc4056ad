#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "port/mapping.h"

namespace coppice::port {

void prefer_huge_pages(std::span<std::byte> part) {
  ::madvise(part.data(), part.size(), MADV_HUGEPAGE);
}

void give_back_pages(std::span<std::byte> part) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t begin = (first + page - 1) / page * page, end = (first + part.size()) / page * page;
  if (begin < end) ::madvise(part.data() + (begin - first), end - begin, MADV_DONTNEED);
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
