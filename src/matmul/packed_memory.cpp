#include "matmul/packed_memory.h"

#include <algorithm>
#include <cstdint>

namespace coppice::matmul {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kPiece = std::size_t{64} << 20;  // what is never touched of it costs nothing

constexpr std::size_t round_up(std::size_t n, std::size_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

std::span<std::byte> PackedMemory::take(std::size_t bytes) {
  bytes = round_up(bytes, kAlignment);
  if (bytes > left_.size()) {
    const std::size_t wanted = std::max(kPiece, round_up(bytes, kHugePage));
    std::byte* const memory = pieces_.emplace_back(wanted + kHugePage).data();
    const auto address = reinterpret_cast<std::uintptr_t>(memory);
    left_ = std::span(memory + (round_up(address, kHugePage) - address), wanted);
    port::prefer_huge_pages(left_);
  }
  const std::span<std::byte> taken = left_.first(bytes);
  left_ = left_.subspan(bytes);
  return taken;
}

void PackedMemory::let_go() {
  for (const port::Mapping& piece : pieces_) port::give_back_pages(piece.bytes());
}

}  // namespace coppice::matmul
