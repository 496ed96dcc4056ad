// BlockOffsets: makes Q4_1 matrices multiply as fast as Q4_0 ones, with the same weights.
//
// A Q4_1 weight is m + d * q, q in 0..15; a Q4_0 weight is d * (q - 8). So Q4_1 = Q4_0 + (m + 8 d), a constant for each
// block of 32 weights of a row, and
//
//   W x = Q4_0 x + C s,   C[o][b] = m + 8 d,   s[b] = sum of x over block b.
//
// ggml has repacked kernels for Q4_0 (2 to 3 times as fast on CPUs without AMX) and none for Q4_1; C s is 1/32 of the
// work. docs/adr/0007-q4-1-as-q4-0.md has the figures.
//
// Owns C. Immutable after construction; must outlive the graphs that use it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "executor/ggml/ggml_ptr.h"

namespace coppice::executor {

class BlockOffsets {
 public:
  static constexpr int kBlock = 32;  ///< weights

  /// matrix: n_out rows of n_in Q4_1 weights. REQUIRES: n_in is a multiple of kBlock.
  BlockOffsets(std::span<const std::byte> matrix, int n_in, int n_out);

  /// y += C s, in place. y: [n_out, n_rows] f32, x: [n_in, n_rows] f32, both contiguous.
  ggml_tensor* add_to(ggml_context* context, ggml_tensor* y, ggml_tensor* x) const;

  std::size_t bytes() const { return offsets_.size() * sizeof(float); }

  /// The same matrix as Q4_0 blocks, without the offsets.
  static std::vector<std::byte> without_offsets(std::span<const std::byte> matrix);

 private:
  int n_in_, n_out_;
  std::vector<float> offsets_;  ///< [n_in / kBlock][n_out]
};

}  // namespace coppice::executor
