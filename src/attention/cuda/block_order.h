// How the GPU's pool orders a block's keys (and, likewise, its values): [key head][panel][slot][panel's values], 16-bit
// numbers. A panel is 16, 32 or 64 values wide, and the 16-byte pieces of its rows are swizzled as the tensor cores
// read them from shared memory ("128-, 64- or 32-byte swizzle" of the PTX manual): a kernel fetches a head's part of a
// panel with one bulk copy, multiplies it where it lands, and needs no tensor map. Slot s of a panel is one row of
// bytes, so a fork copies rows.
//
// Name of the order, for digests of stored blocks: "panel-swizzled".
//
// int8 blocks ("byte-rows"): [key head][ [slot][head_dim signed bytes], then [slot] f16 scales ]. They hold rotated
// vectors (kv_format.h); the kernel knows nothing of that: whoever calls it rotates queries, and rotates outputs back.
#pragma once

#include <cstddef>

#ifdef __CUDACC__
#define COPPICE_HOST_DEVICE __host__ __device__
#else
#define COPPICE_HOST_DEVICE
#endif

namespace coppice::attention::cuda {

/// Values of a panel. REQUIRES: head_dim is a multiple of 16.
COPPICE_HOST_DEVICE constexpr int panel_width(int head_dim) {
  return head_dim % 64 == 0 ? 64 : head_dim % 32 == 0 ? 32 : 16;
}

/// Where value `dim` of `slot` of one head is, in bytes from the head's part of the block. block_size: slots, a
/// multiple of 8.
COPPICE_HOST_DEVICE constexpr std::size_t offset_in_head(int head_dim, int block_size, int slot, int dim) {
  const int width = panel_width(head_dim), row_bytes = 2 * width;
  const int panel = dim / width;
  const int plain = slot * row_bytes + dim % width * 2;
  const int swizzled = plain ^ ((plain >> 3) & (row_bytes - 16));
  return static_cast<std::size_t>(panel) * static_cast<std::size_t>(block_size * row_bytes) +
         static_cast<std::size_t>(swizzled);
}

/// Bytes of one head's keys (or values) of a block of signed bytes.
COPPICE_HOST_DEVICE constexpr std::size_t byte_head_bytes(int head_dim, int block_size) {
  return static_cast<std::size_t>(block_size * (head_dim + 2));
}

}  // namespace coppice::attention::cuda
