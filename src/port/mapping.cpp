#include "port/mapping.h"

#include <sys/mman.h>

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

}  // namespace coppice::port
