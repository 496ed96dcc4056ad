// y = W x on an NVIDIA GPU (sm_80 or newer; best on Hopper) for any number of rows x, with weights that stay quantised
// (quant_pack.h).
//
// Few rows are bound by reading the weights. Those become whole numbers, exactly; sums over 16 or 32 inputs are scaled
// in f32. So nothing but x itself is rounded, to bf16, which the caller has done. For more rows, on Hopper, weights
// become bf16 numbers, each rounded once.
//
// Plain pointers and numbers. Deterministic: the same arguments and memory give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/gate.h"
#include "cuda/gpu.h"
#include "matmul/cuda/quant_pack.h"

namespace coppice::matmul::cuda {

using coppice::cuda::Gpu;

/// Device memory of which a launch may use all; launches share it one after the other. flags: zeroed once, when
/// allocated; each launch leaves them zeroed.
struct ProductScratch {
  float* sums = nullptr;           ///< product_scratch_sums()
  std::uint32_t* flags = nullptr;  ///< [kProductFlags]
};
inline constexpr int kProductFlags = 1024;
/// Numbers.
std::size_t product_scratch_sums(const Gpu& gpu);

/// What a product of a gate and an up matrix, packed as pairs (pack_pairs), gives: gate(its sum + gate_bias) * (up's
/// sum + up_bias). REQUIRES: n_out is a multiple of kTileOutputs.
struct GatedOutput {
  coppice::cuda::Gate gate = coppice::cuda::Gate::kSilu;
  const float *gate_bias = nullptr, *up_bias = nullptr;  ///< [n_out / 2]; nullptr: nothing is added
  void* out = nullptr;                                   ///< [n_rows, n_out / 2] bf16
};

/// All pointers are to device memory, 16-byte aligned.
struct QuantProduct {
  QuantType type = QuantType::kQ4K;
  int n_in = 0, n_out = 0;
  int n_rows = 0;
  const std::byte* weights = nullptr;  ///< packed
  const void* x = nullptr;             ///< [n_rows, n_in] bf16
  /// [n_slices][n_rows, n_out]: sums over slices of the inputs, for the reader to add; nullptr: `gated` is wanted
  /// instead
  float* y = nullptr;
  ProductScratch scratch;
  /// product_slices() or fewer: thread blocks then don't wait for each other. REQUIRES: 1 with `gated`.
  int n_slices = 1;
  GatedOutput gated;
};

/// For measurements and tests.
struct ProductTuning {
  int most_byte_rows = 4;   ///< up to so many rows in whole numbers; 4 at most
  int least_tile_rows = 0;  ///< from so many rows on weights are rounded to bf16; 0: least_tile_rows()
  int n_tile_blocks = 0;    ///< there, at most; 0: chosen
  bool plain = false;       ///< what GPUs without wgmma do, whatever this one has
  int n_warps = 0;          ///< of the product in whole numbers, of a thread block: 2 to 16; 0: all of these are chosen
  int n_slots = 0;          ///< stages of a warp's ring, 2 at least; 0: what half a multiprocessor holds
  int n_blocks = 0;         ///< at most
};

/// From so many rows on, on Hopper, weights are rounded to bf16: what is faster for a matrix of this size
/// (docs/decisions.md, "Many rows on GPUs").
int least_tile_rows(int n_in, int n_out);

/// How many slices pay, where the reader can add them.
int product_slices(const Gpu& gpu, int n_in, int n_out, int n_rows);

/// nullptr or why not. REQUIRES: as pack().
const char* launch_quant_product(const QuantProduct& product, const Gpu& gpu, const ProductTuning& tuning = {});

}  // namespace coppice::matmul::cuda
