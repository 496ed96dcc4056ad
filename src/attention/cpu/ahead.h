// Fetching a tile's keys and values before they are needed.
#pragma once

#include <cstddef>

#include "attention/cpu/tile.h"

namespace coppice::attention {

/// Asks for what comes next, line by line: keys, then values, of some heads in slots [first, first + n) of a tile.
/// Blocks lie anywhere, which no hardware can foresee; and all lines at once would make the core wait for its few fill
/// buffers.
class Ahead {
 public:
  /// bytes: of the heads from kv_head on. first: counted from the run's first slot.
  Ahead(const TileView& tile, int kv_head, std::size_t bytes, int first, int n)
      : t_(tile), kv_head_(kv_head), bytes_(bytes), first_(first), n_(n) {
    start(true);
  }
  int lines() const { return 2 * n_ * static_cast<int>(bytes_ / 64 + 1); }

  [[gnu::always_inline]] void fetch(int lines) {
    for (; lines > 0 && left_ > 0; --lines) {
      __builtin_prefetch(row_ + at_, 0, 2);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      row_ += t_.row_bytes();
      if (++in_block_ == t_.block_size()) enter(block_ + 1);
      if (--left_ == 0 && keys_) start(false);
    }
  }

 private:
  void start(bool keys) {
    keys_ = keys;
    left_ = n_;
    if (n_ == 0) return;
    enter(t_.block_of(first_));
    in_block_ = t_.place_of(first_);
    row_ += t_.row_bytes() * static_cast<std::size_t>(in_block_);
  }
  void enter(int block) {
    block_ = block;
    in_block_ = 0;
    row_ = keys_ ? t_.keys(block, kv_head_) : t_.values(block, kv_head_);
  }

  const TileView& t_;
  int kv_head_;
  std::size_t bytes_, at_ = 0;
  int first_, n_, left_ = 0, block_ = 0, in_block_ = 0;
  bool keys_ = true;
  const std::byte* row_ = nullptr;
};

}  // namespace coppice::attention
