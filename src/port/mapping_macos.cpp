#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

#include "port/mapping.h"

namespace coppice::port {

void prefer_huge_pages(std::span<std::byte>) {}

/// New pages in their place: madvise() only makes old ones the first that go when memory is short.
void give_back_pages(std::span<std::byte> part) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t begin = (first + page - 1) / page * page, end = (first + part.size()) / page * page;
  if (begin < end) {
    ::mmap(part.data() + (begin - first), end - begin, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
           -1, 0);
  }
}

bool take_pages(std::span<std::byte>) {
  return true;
}

}  // namespace coppice::port
