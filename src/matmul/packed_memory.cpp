#include "matmul/packed_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace coppice::matmul {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPiece = std::size_t{64} << 20;  // what is never touched of it costs nothing

constexpr std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

void PackedMemory::Unmap::operator()(std::byte* memory) const {
  ::munmap(memory, size);
}

std::span<std::byte> PackedMemory::take(std::size_t bytes) {
  bytes = round_up(bytes, kAlignment);
  if (bytes > left_.size()) {
    const std::size_t wanted = std::max(kPiece, round_up(bytes, kHugePage)), mapped = wanted + kHugePage;
    void* memory = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    pieces_.emplace_back(static_cast<std::byte*>(memory), Unmap{mapped});
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    left_ = std::span(pieces_.back().get() + (round_up(address, kHugePage) - address), wanted);
    ::madvise(left_.data(), left_.size(), MADV_HUGEPAGE);  // without huge pages it is only slower
  }
  const std::span<std::byte> taken = left_.first(bytes);
  left_ = left_.subspan(bytes);
  return taken;
}

}  // namespace coppice::matmul
