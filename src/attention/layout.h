// How one layer's keys and values lie in the pool, as kernels see them. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/kv_format.h"
#include "kv/types.h"

namespace coppice::attention {

/// Query head h reads key head h / (n_head / n_kv_head).
struct HeadShape {
  int n_head = 0;
  int n_kv_head = 0;
  int head_dim = 0;
  float scale = 1.0F;    ///< scores are scale * (q . k)
  float softcap = 0.0F;  ///< c: scores become c * tanh(score / c); 0: they don't

  int heads_per_kv() const { return n_head / n_kv_head; }
  friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

/// One layer's keys and values: blocks of block_size slots, a slot's row is n_kv_head heads of head_bytes each. Block b
/// begins b * block_stride bytes behind block 0. Borrowed.
struct PoolView {
  KvFormat format = KvFormat::kF16;
  int block_size = 0;
  std::size_t row_bytes = 0;  ///< of one slot's keys (or values), all heads
  std::size_t block_stride = 0;
  const std::byte* keys = nullptr;  ///< of block 0
  const std::byte* values = nullptr;
};

}  // namespace coppice::attention
