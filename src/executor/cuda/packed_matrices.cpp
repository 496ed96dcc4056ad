#include "executor/cuda/packed_matrices.h"

namespace coppice::executor::cuda {

int PackedMatrices::n_out() const {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += parts[static_cast<std::size_t>(i)].n_out;
  return sum;
}

ProductRows PackedMatrices::rows(const float* y, int n_rows, int first_out) const {
  const Part* part = parts.data();
  for (; first_out >= part->n_out; ++part) {
    first_out -= part->n_out;
    y += static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(part->n_out);
  }
  return {y + first_out, part->n_out};
}

}  // namespace coppice::executor::cuda
