#include "port/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

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

void give_back_pages(std::span<std::byte> part) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t begin = (first + page - 1) / page * page, end = (first + part.size()) / page * page;
  if (begin < end) give_back_whole_pages(part.subspan(begin - first, end - begin));
}

}  // namespace coppice::port
