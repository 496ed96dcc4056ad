#include <sys/mman.h>

#include "port/mapping.h"

namespace coppice::port {

void prefer_huge_pages(std::span<std::byte>) {}

/// New pages in their place: madvise() only makes old ones the first that go when memory is short.
void give_back_whole_pages(std::span<std::byte> pages) {
  ::mmap(pages.data(), pages.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

bool take_pages(std::span<std::byte>) {
  return true;
}

}  // namespace coppice::port
