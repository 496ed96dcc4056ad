// y = W x where W is several matrices of one shape, its parts, and the rows of x are sorted by the part that they meet
// (row_panels.h): the products of experts. Rows and panels come from the device, so a captured launch serves any
// choice. Few rows of a part read its weights once; many become tiles (quant_product.h says how both compute).
//
// Plain pointers and numbers. Deterministic: the same arguments and memory give the same bits.
#pragma once

#include "matmul/cuda/quant_product.h"
#include "matmul/cuda/row_panels.h"

namespace coppice::matmul::cuda {

/// All pointers are to device memory.
struct PartRows {
  int n_parts = 0;
  int panel_rows = 0;                      ///< of a panel, at most: panel_rows()
  const RowPanel* panels = nullptr;        ///< [most_panels()]
  const std::int32_t* n_panels = nullptr;  ///< how many are valid: all rows, each once
  std::int64_t part_bytes = 0;  ///< from the packed weights of a part to those of the next one; a multiple of 16
};

/// The size of panels for so many rows, of which no part has more than `most`.
int panel_rows(const Gpu& gpu, int n_rows, int n_parts, int most);

/// product: `weights` is the first part's, n_out a part's outputs, n_rows those of all parts. As launch_quant_product;
/// plain as in ProductTuning. REQUIRES: not `gated`, one slice; panels have at most 16 rows, or 64 or 128 on Hopper.
const char* launch_part_product(const QuantProduct& product, const PartRows& parts, const Gpu& gpu);

}  // namespace coppice::matmul::cuda
