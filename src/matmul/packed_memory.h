// PackedMemory: where packed weights lie, one matrix behind the other, in huge pages where the system has them. A step
// reads all weights in order, and a core that looks an address up every 4 KiB reads them a third slower
// (docs/decisions.md, "Weights in order").
//
// Owns the memory. Not thread safe.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "port/mapping.h"

namespace coppice::matmul {

class PackedMemory {
 public:
  static constexpr std::size_t kAlignment = 64;

  /// So many bytes, all zeros, aligned to kAlignment, for as long as this lives. Throws std::bad_alloc.
  std::span<std::byte> take(std::size_t bytes);
  /// Gives the system back what was taken. All of it stays where it is, and its bytes are lost.
  void let_go();

 private:
  std::vector<port::Mapping> pieces_;
  std::span<std::byte> left_;  ///< of the last piece
};

}  // namespace coppice::matmul
