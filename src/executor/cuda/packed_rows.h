// A file's matrices as the GPU has them (matmul/cuda/quant_pack.h): packed as they are, where there is a product for
// their type; all others as bf16. Knows no CUDA; any thread may call it.
#pragma once

#include <cstddef>
#include <vector>

#include "matmul/cuda/quant_pack.h"
#include "model/model.h"

namespace coppice::executor::cuda {

matmul::QuantType packed_type(const model::TensorInfo& tensor);

/// Of n_out outputs with n_in inputs. REQUIRES: n_out is a multiple of kTileOutputs, or the matrix ends there.
std::size_t packed_bytes(matmul::QuantType type, std::int64_t n_in, std::int64_t n_out);

/// Outputs [first, first + n) of a matrix; where the tensor has several (experts), of the one with this number.
/// REQUIRES: first is a multiple of kTileOutputs, and n is, or the matrix ends there.
std::vector<std::byte> pack_rows(const model::GgufFile& file, const model::TensorInfo& tensor, std::int64_t matrix,
                                 std::int64_t first, std::int64_t n);

/// Outputs [first, first + n) of both of a gated unit's matrices, as pairs (matmul/cuda/quant_pack.h).
/// REQUIRES: both have the same shape and packed_type(); first and n are multiples of kTilePairs.
std::vector<std::byte> pack_pair_rows(const model::GgufFile& file, const model::TensorInfo& gate,
                                      const model::TensorInfo& up, std::int64_t first, std::int64_t n);

/// A tensor of one dimension (a norm, a bias), or of two (biases of experts), as numbers.
std::vector<float> plain_numbers(const model::GgufFile& file, const model::TensorInfo& tensor);

}  // namespace coppice::executor::cuda
