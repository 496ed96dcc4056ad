#include "port/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <new>

namespace coppice::port {

Mapping::Mapping(std::size_t size) {
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = {static_cast<std::byte*>(memory), Unmap{size}};
}

void Mapping::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, size);
}

void prefer_huge_pages(std::span<std::byte> part) {
#ifdef MADV_HUGEPAGE
  ::madvise(part.data(), part.size(), MADV_HUGEPAGE);
#else
  static_cast<void>(part);
#endif
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
