// Fetching a tile's keys and values before they are needed.
#pragma once

#include <cstddef>

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention {

/// Asks for what comes next, line by line: keys, then values, of some heads in slots [first, first + n) of a tile. Blocks
/// lie anywhere, which no hardware can foresee; and all lines at once would make the core wait for its few fill buffers.
class Ahead {
 public:
  /// bytes [offset, offset + bytes) of each row.
  Ahead(const TileInput& tile, std::size_t offset, std::size_t bytes, int first, int n)
      : t_(tile), offset_(offset), bytes_(bytes), first_(first - tile.run_offset), n_(n) {
    start(t_.pool.keys);
  }
  int lines() const { return 2 * n_ * static_cast<int>(bytes_ / 64 + 1); }

  [[gnu::always_inline]] void fetch(int lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      row_ += t_.pool.row_bytes;
      if (++in_block_ == t_.pool.block_size) enter(block_ + 1);
      if (--left_ == 0 && pool_ == t_.pool.keys) start(t_.pool.values);
    }
  }

 private:
  void start(const std::byte* pool) {
    pool_ = pool;
    left_ = n_;
    if (n_ == 0) return;
    enter(first_ / t_.pool.block_size);
    in_block_ = first_ % t_.pool.block_size;
    row_ += t_.pool.row_bytes * static_cast<std::size_t>(in_block_);
  }
  void enter(int block) {
    block_ = block;
    in_block_ = 0;
    if (static_cast<std::size_t>(block) >= t_.blocks.size()) return;
    row_ =
        pool_ + t_.pool.block_bytes() * static_cast<std::size_t>(t_.blocks[static_cast<std::size_t>(block)]) + offset_;
  }

  const TileInput& t_;
  std::size_t offset_, bytes_, at_ = 0;
  int first_, n_, left_ = 0, block_ = 0, in_block_ = 0;
  const std::byte *pool_ = nullptr, *row_ = nullptr;
};

}  // namespace coppice::attention
