// Where a tile's queries, keys, values and states lie. The queries of a key head are numbered row by row, the query
// heads that read it one after the other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention {

class TileView {
 public:
  explicit TileView(const TileInput& input)
      : t_(input),
        per_kv_(input.heads.heads_per_kv()),
        head_bytes_(head_bytes(input.pool.format, input.heads.head_dim)) {
    int lo = std::numeric_limits<int>::max(), hi = 0;
    for (const RowInterval& row : t_.rows) lo = std::min(lo, row.lo), hi = std::max(hi, row.hi);
    begin_ = std::max(lo, t_.run_offset);
    end_ = std::min(hi, t_.run_offset + static_cast<int>(t_.blocks.size()) * block_size());
  }

  const HeadShape& heads() const { return t_.heads; }
  int head_dim() const { return t_.heads.head_dim; }
  /// Of this tile: they are numbered from its first one on.
  int n_kv_head() const { return t_.n_kv_heads; }
  int block_size() const { return t_.pool.block_size; }
  int n_queries() const { return static_cast<int>(t_.rows.size()) * per_kv_; }
  std::size_t bytes_of_head() const { return head_bytes_; }  ///< in a slot's row
  std::size_t row_bytes() const { return t_.pool.row_bytes; }

  /// Slots [begin, end), counted from the run's first one: those that some row sees.
  int begin() const { return begin_; }
  int end() const { return end_; }
  /// The slots that a query sees, counted from the run's first one.
  const RowInterval& interval(int query) const { return t_.rows[static_cast<std::size_t>(query / per_kv_)]; }

  const float* query(int kv_head, int query) const {
    return t_.q + head_of(interval(query).row, kv_head, query) * head_dim();
  }
  /// {acc[head_dim], max, sum}, to be written.
  float* state(int kv_head, int query) const {
    return t_.states + head_of(query / per_kv_, kv_head, query) * (head_dim() + 2);
  }

  /// A slot's block, counted from the tile's first one, and its place in it.
  int block_of(int slot) const { return (slot - t_.run_offset) / block_size(); }
  int place_of(int slot) const { return (slot - t_.run_offset) % block_size(); }
  /// Slots from this one to the end of its block, or to end().
  int left_in_block(int slot) const { return std::min(block_size() - place_of(slot), end_ - slot); }

  /// A head's keys, or values, in the first slot of a block; nullptr behind the last block.
  const std::byte* keys(int block, int kv_head) const { return at(t_.pool.keys, block, kv_head); }
  const std::byte* values(int block, int kv_head) const { return at(t_.pool.values, block, kv_head); }

 private:
  std::ptrdiff_t head_of(std::int32_t row, int kv_head, int query) const {
    return std::ptrdiff_t{row} * t_.heads.n_head + (t_.first_kv_head + kv_head) * per_kv_ + query % per_kv_;
  }
  const std::byte* at(const std::byte* pool, int block, int kv_head) const {
    const auto i = static_cast<std::size_t>(block);
    if (i >= t_.blocks.size()) return nullptr;
    return pool + t_.pool.block_stride * static_cast<std::size_t>(t_.blocks[i]) +
           head_bytes_ * static_cast<std::size_t>(t_.first_kv_head + kv_head);
  }

  const TileInput& t_;
  int per_kv_, begin_ = 0, end_ = 0;
  std::size_t head_bytes_;
};

}  // namespace coppice::attention
