// Packed matrices (matmul/cuda/quant_pack.h) of a model in the GPU's memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "executor/cuda/operators.h"
#include "matmul/cuda/quant_product.h"

namespace coppice::executor::cuda {

/// In device memory.
struct PackedMatrix {
  matmul::QuantType type = matmul::QuantType::kBf16;
  const std::byte* weights = nullptr;
  std::int64_t bytes = 0;  ///< where it is the first of several (experts): from one to the next
};

/// Matrices that the same rows are multiplied by, as up to four: neighbours of one type, packed one behind the other,
/// are one. Their products lie one behind the other, too.
struct PackedMatrices {
  struct Part {
    PackedMatrix matrix;
    int n_out = 0;
  };
  std::array<Part, 4> parts;
  int n = 0;

  PackedMatrices() = default;
  PackedMatrices(std::initializer_list<Part> of) {
    for (const Part& part : of) parts[static_cast<std::size_t>(n++)] = part;
  }
  /// Of all of them.
  int n_out() const;
  /// Outputs from first_out on, of n_rows rows whose products begin at y. REQUIRES: there are so many.
  ProductRows rows(const float* y, int n_rows, int first_out) const;
};

}  // namespace coppice::executor::cuda
