// y = W x on an NVIDIA GPU (sm_80 or newer) for few rows x, with weights that stay quantised (quant_pack.h): bound by reading them.
//
// Weights become whole numbers in bf16, exactly, and meet x on the tensor cores; sums over 16 or 32 inputs are scaled in f32. So
// nothing but x itself is rounded, to bf16, which the caller has done.
//
// Plain pointers and numbers. Deterministic: the same arguments and memory give the same bits.
#pragma once

#include <cstddef>

#include "matmul/cuda/quant_pack.h"

struct CUstream_st;

namespace coppice::matmul::cuda {

inline constexpr int kMostRows = 16;

/// All pointers are to device memory, 16-byte aligned.
struct QuantProduct {
  QuantType type = QuantType::kQ4K;
  int n_in = 0, n_out = 0;
  int n_rows = 0;                      ///< 1 .. kMostRows
  const std::byte* weights = nullptr;  ///< packed
  const void* x = nullptr;             ///< [n_rows, n_in] bf16
  float* y = nullptr;                  ///< [n_rows, n_out]
};

/// For measurements and tests.
struct ProductTuning {
  int most_byte_rows = 4;  ///< up to so many rows in whole numbers; 4 at most
  int n_warps = 0;         ///< there, of a thread block: 2 to 16; 0: all of these are chosen
  int n_slots = 0;         ///< stages of a warp's ring, 2 at least; 0: what half a multiprocessor holds
  int n_blocks = 0;        ///< at most
};

/// Launches on `stream`; nullptr or why not. REQUIRES: as pack().
const char* launch_quant_product(const QuantProduct& product, CUstream_st* stream, const ProductTuning& tuning = {});

}  // namespace coppice::matmul::cuda
