// Products of many rows, type by type, for quant_product.cu to choose.
#pragma once

#include "matmul/cuda/part_product.h"

namespace coppice::matmul::cuda {

/// As launch_quant_product, on Hopper GPUs, for any number of rows of x and weights of kType. Defined for has_product()
/// types.
template <QuantType kType>
const char* launch_tiles(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu);

/// As launch_part_product, likewise, with panels of 64 or 128 rows.
template <QuantType kType>
const char* launch_part_tiles(const QuantProduct& p, const PartRows& parts, const Gpu& gpu);

}  // namespace coppice::matmul::cuda
