// QuantMatrix: a matrix of quantised weights, in the order in which a CPU with dot products of bytes multiplies it fastest.
//
//   y = W x      W: [n_out, n_in] weights of a GGUF file in blocks of 32, x: [n_rows, n_in] f32, y: [n_rows, n_out] f32
//
// A weight is d * (q - zero) + m: q is not negative and has 4 or 8 bits, d and m are the block's.
//   Q4_0   zero = 8,   no m
//   Q4_1   zero = 0
//   Q8_0   zero = 128, no m
// x is rounded to 8 bits with one f16 scale for each 32 values, as ggml does. A block's part of an output is then
//   d_w * d_x * (sum of q_w * q_x - zero * sum of q_x) + m * d_x * sum of q_x
// where the sums are exact in whole numbers. With AMX, products of 13 rows and more take weights and x as bf16 instead:
// 8 bits of every value.
//
// Packed order: tiles of 16 outputs, one after the other; a tile's blocks along n_in; a block has
//   d     16 f16
//   m     16 f16; Q4_1 only
//   q     for each group of four inputs, the four q of output 0, of output 1, ...: 64 bytes. With 4 bits, groups 2 i
//         and 2 i + 1 share their bytes: low and high halves
// As many bytes as in the file. Outputs beyond n_out are filled with zeros.
//
// Owns the packed weights. Immutable after construction, so any thread may multiply.
#pragma once

#include <hwy/aligned_allocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace coppice::matmul {

enum class QuantType : std::uint8_t { kQ4_0, kQ4_1, kQ8_0 };

/// Who does what of a product, decided as they go: a worker whose core is slow, or busy with something else, takes less.
/// Ready for the next product when every worker has been told that nothing is left.
class Claims {
 public:
  /// The next unit of n, or n: nothing is left. Each of the n_workers goes on until it is told so, and then stops.
  int next(int n, int n_workers) {
    const int unit = claimed_.fetch_add(1, std::memory_order_relaxed);
    if (unit < n) return unit;
    if (done_.fetch_add(1, std::memory_order_acq_rel) == n_workers - 1) {
      done_.store(0, std::memory_order_relaxed);
      claimed_.store(0, std::memory_order_relaxed);
    }
    return n;
  }

 private:
  std::atomic<int> claimed_ = 0, done_ = 0;
};

class QuantMatrix {
 public:
  static constexpr int kBlock = 32;  ///< inputs
  static constexpr int kTileOutputs = 16;
  static constexpr int kBlocksAtOnce = 64;  ///< of a row of x, rounded: 2,048 inputs

  /// Whether this CPU has the instructions that make a matrix of this type worth packing.
  static bool supports(QuantType type);

  /// blocks: n_out rows of n_in weights, as the file has them. Throws std::bad_alloc.
  /// REQUIRES: n_in is a multiple of kBlock; blocks has the size that follows.
  QuantMatrix(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks);

  /// Rows to multiply: as they are, or normalised by their root mean square: x / sqrt(mean of x^2 + norm_eps) * norm.
  struct Rows {
    const float* x;  ///< [n, n_in]
    int n;
    const float* norm = nullptr;  ///< [n_in]
    float norm_eps = 0.0F;
  };
  /// y = W x, or W x + plus
  struct Product {
    const QuantMatrix* matrix;
    float* y;                     ///< [n_rows, n_out]
    const float* plus = nullptr;  ///< likewise; may be y
  };
  /// One worker's part of some products of one x, which is rounded once for all of them; the n_workers that call this
  /// with the same claims together write every value of each y, each once. The next product with these claims must not
  /// begin before all of them have returned.
  /// REQUIRES: at least one product; all matrices have the same type and n_in, and the type is supported.
  static void multiply(std::span<const Product> products, const Rows& rows, Claims& claims, int n_workers);

  /// A gated linear unit (SwiGLU; Shazeer 2020): gate.y := silu(W_gate x) * (W_up x), with silu(z) = z / (1 + exp(-z)). up.y
  /// is overwritten. Workers as above. REQUIRES: as above; n_out is the same, and nothing is added.
  static void multiply_gated(const Product& gate, const Product& up, const Rows& rows, Claims& claims, int n_workers);

  QuantType type() const { return type_; }
  int n_in() const { return n_in_; }
  int n_out() const { return n_out_; }
  int n_tiles() const { return (n_out_ + kTileOutputs - 1) / kTileOutputs; }
  const std::byte* packed() const { return packed_.get(); }  ///< aligned to a vector
  std::size_t bytes() const { return bytes_; }

 private:
  QuantType type_;
  int n_in_, n_out_;
  std::size_t bytes_;
  hwy::AlignedFreeUniquePtr<std::byte[]> packed_;
};

}  // namespace coppice::matmul
