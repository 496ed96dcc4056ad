// QuantMatrix: a matrix of quantised weights, in the order in which a CPU with dot products of bytes multiplies it
// fastest.
//
//   y = W x      W: [n_out, n_in] weights of a GGUF file, x: [n_rows, n_in] f32, y: [n_rows, n_out] f32
//
// A weight is d * s * (q - zero) + m * t. q is not negative; d and m are f16; s and t are small whole numbers: the
// two-level scales of the types whose blocks have 256 weights.
//            q, bits   zero   d, m of    s of, bits      t of, bits
//   Q4_0     4         8      32, none   -               -
//   Q4_1     4         0      32, 32     -               -
//   Q5_0     5         16     32, none   -               -
//   Q5_1     5         0      32, 32     -               -
//   Q8_0     8         128    32, none   -               -
//   IQ4_NL   4, table  128    32, none   -               -            the table's 16 numbers have 8 bits
//   Q4_K     4         0      256, 256   32, 6           32, 6        m is minus what the file has
//   Q5_K     5         0      256, 256   32, 6           32, 6        as Q4_K
//   Q6_K     6         32     256, none  16, 8 signed    -
//   IQ4_XS   4, table  128    256, none  32, 6 signed    -
//   MXFP4    4, table  16     32, none   -               -            d is a power of two, and 0 below 2^-126
//   BF16     the weights themselves; GPUs only (cuda/quant_pack.h)
// x is rounded to 8 bits with one f16 scale for each 32 values, as ggml does for the first six. A block's part of an
// output is
//   d * s * d_x * (sum of q * q_x - zero * sum of q_x) + m * t * d_x * sum of q_x
// where the sums are exact in whole numbers. With AMX, products of 13 rows and more, and those that are to be
// alike for any number of rows, take weights and x as bf16 instead: 8 bits of every value.
//
// Packed order: tiles of 16 outputs, one after the other; a tile's chunks along n_in: 32 inputs, or 256 where d has
// 256. A chunk has
//   d      16 f16; MXFP4: 16 bytes, the exponents of f32
//   m      16 f16, if the type has m
//   s      for each 32 or 16 inputs 16 bytes, one of each output; if the type has s
//   t      for each 32 inputs 16 bytes; if the type has t
// and for each block of 32 inputs
//   low    for each group of four inputs, the four q of output 0, of output 1, ...: 64 bytes. With less than 8 bits,
//          groups 2 i and 2 i + 1 share their bytes: their lowest four bits in low and high halves
//   high   the other bits of q. 5 bits: 64 bytes, bit i for group i. 6 bits: 128 bytes, the first 64 for groups 0 to 3,
//          bits 2 i and 2 i + 1 for group i
// As many bytes as in the file, and where s or t have 6 bits 1 to 3 % more. Outputs beyond n_out are filled with zeros.
//
// A matrix may have several parts of the same shape, one behind the other: experts, each of which has rows of its own.
//
// Any thread may multiply, but while pack() runs.
#pragma once

#include <hwy/aligned_allocator.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "matmul/packed_memory.h"

namespace coppice::matmul {

enum class QuantType : std::uint8_t {
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kIq4Nl,
  kQ4K,
  kQ5K,
  kQ6K,
  kIq4Xs,
  kMxfp4,
  kBf16
};

/// What becomes of two products, z and u, with sigmoid(z) = 1 / (1 + exp(-z)). SwiGLU and GEGLU: Shazeer 2020. Clamped:
/// gpt-oss.
enum class Gate : std::uint8_t {
  kSilu,     ///< z * sigmoid(z) * u
  kGelu,     ///< z * sigmoid(2 * sqrt(2 / pi) * (z + 0.044715 z^3)) * u
  kClamped,  ///< z' * sigmoid(1.702 z') * (u' + 1), z' = min(z, 7), u' = u within 7 of 0
};

/// Who does what of a product. The units are cut into shares of neighbours. A worker goes through one that is its own,
/// so that what it fetches ahead is what it takes next; then it helps with the others', so that nobody waits long for a
/// core that is slow, or busy with something else. Ready for the next product when every worker has been told that
/// nothing is left. A worker here is a part of the work, not a thread: where one thread comes late, another one is told
/// in its place.
class Claims {
 public:
  static constexpr int kMostShares = 64;

  /// One of n, counted from 0.
  struct Worker {
    int index = 0, n = 1;
  };

  /// One worker's way through a product's units.
  class Turn {
   public:
    /// n_shares: at most kMostShares, the same for each of the workers.
    Turn(Claims& claims, int n_units, int n_shares, Worker worker)
        : claims_(claims),
          n_units_(n_units),
          n_shares_(n_shares),
          n_workers_(worker.n),
          share_(worker.index * n_shares / worker.n),
          left_(n_shares) {}

    /// The next unit, or n_units: nothing is left. Each worker goes on until it is told so, and then stops.
    int next() {
      for (; left_ > 0; --left_, share_ = (share_ + 1) % n_shares_) {
        std::atomic<int>& taken = claims_.shares_[static_cast<std::size_t>(share_)].taken;
        // Most shares are empty when somebody else comes: to look costs less than to take, and all can look at once.
        const int first = begin(share_), end = begin(share_ + 1);
        if (first + taken.load(std::memory_order_relaxed) >= end) continue;
        const int unit = first + taken.fetch_add(1, std::memory_order_relaxed);
        if (unit < end) return unit;
      }
      if (claims_.done_.fetch_add(1, std::memory_order_acq_rel) == n_workers_ - 1) claims_.clear();
      return n_units_;
    }

   private:
    int begin(int share) const { return static_cast<int>(std::int64_t{n_units_} * share / n_shares_); }

    Claims& claims_;
    int n_units_, n_shares_, n_workers_;
    int share_, left_;  ///< where it is; shares that it hasn't found empty
  };

 private:
  struct alignas(64) Share {  // a cache line: workers must not wait for each other's
    std::atomic<int> taken = 0;
  };

  void clear() {
    for (Share& share : shares_) {
      if (share.taken.load(std::memory_order_relaxed) != 0) share.taken.store(0, std::memory_order_relaxed);
    }
    done_.store(0, std::memory_order_relaxed);
  }

  std::array<Share, kMostShares> shares_;
  std::atomic<int> done_ = 0;
};

class QuantMatrix {
 public:
  static constexpr int kBlock = 32;  ///< inputs
  static constexpr int kTileOutputs = 16;

  /// Whether this CPU has the instructions that make matrices worth packing.
  static bool supported();

  /// Weights that share a block of the file: 32 or 256.
  static int file_block(QuantType type);

  /// blocks: n_out rows of n_in weights for each part, as the file has them; `stride` bytes from one part's to the next
  /// one's, 0 where nothing lies between. memory: where the packed weights go, and it must outlive this; nullptr:
  /// memory of its own. Throws std::bad_alloc. REQUIRES: n_in is a multiple of file_block(type); blocks has the size
  /// that follows.
  QuantMatrix(QuantType type, int n_in, int n_out, std::span<const std::byte> blocks, int n_parts = 1,
              std::size_t stride = 0, PackedMemory* memory = nullptr);

  /// Packs them again, after PackedMemory::let_go(). REQUIRES: they are those that the constructor had; nobody
  /// multiplies.
  void pack(std::span<const std::byte> blocks, std::size_t stride = 0);

  /// Rows to multiply: as they are, or normalised by their root mean square: x / sqrt(mean of x^2 + norm_eps) * norm.
  struct Rows {
    const float* x;  ///< [n, n_in], or more rows where there is an order
    int n;
    const float* norm = nullptr;  ///< [n_in]
    float norm_eps = 0.0F;
    const std::int32_t* order = nullptr;  ///< [n]: row i is row order[i] of x
    /// [n_parts + 1]: rows [begin[i], begin[i + 1]) are part i's; rising from 0 to n
    const std::int32_t* begin = nullptr;
    /// A row's result doesn't hang on how many others there are: AMX also takes rows that are sooner multiplied without
    /// it.
    bool alike = false;
  };
  /// y = W x, or W x + plus, or W x + bias. REQUIRES: not both.
  struct Product {
    const QuantMatrix* matrix;
    float* y;                     ///< [n_rows, n_out]
    const float* plus = nullptr;  ///< [n_rows, n_out]; may be y
    const float* bias = nullptr;  ///< [n_parts, n_out]
  };
  /// One worker's part of some products of one x, which is rounded once for all of them; the workers that call this
  /// with the same claims together write every value of each y, each once. The next product with these claims must not
  /// begin before all of them have returned.
  /// REQUIRES: at least one product; all matrices have the same n_in and n_parts; rows have `begin` unless there is one
  /// part; supported().
  static void multiply(std::span<const Product> products, const Rows& rows, Claims& claims, Claims::Worker worker);

  /// A gated linear unit: gates.y := the gate of W_gates x and W_up x. up.y is overwritten. Workers as above. REQUIRES:
  /// as above; n_out is the same; there is no plus.
  static void multiply_gated(Gate gate, const Product& gates, const Product& up, const Rows& rows, Claims& claims,
                             Claims::Worker worker);

  QuantType type() const { return type_; }
  int n_in() const { return n_in_; }
  int n_out() const { return n_out_; }  ///< of a part, as n_tiles()
  int n_parts() const { return n_parts_; }
  int n_tiles() const { return (n_out_ + kTileOutputs - 1) / kTileOutputs; }
  const std::byte* packed() const { return packed_; }  ///< aligned to a vector
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t tile_bytes() const;

  QuantType type_;
  int n_in_, n_out_, n_parts_;
  std::size_t bytes_;
  std::byte* packed_;
  hwy::AlignedFreeUniquePtr<std::byte[]> own_;  ///< memory, if it has some
};

}  // namespace coppice::matmul
