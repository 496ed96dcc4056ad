// Rows of a product that meet different parts of a matrix, as rows of a step meet their experts: sorted by part, and
// cut into panels of neighbours that meet the same one. Knows no CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

namespace coppice::matmul::cuda {

/// Rows [first, first + n), which meet one part. In device memory.
struct RowPanel {
  std::int32_t part = 0, first = 0, n = 0;
};

/// As many panels as n_rows rows of n_parts parts can make at most, however they are shared out: the last of each part
/// may have few rows. REQUIRES: n_rows, n_parts, panel_rows >= 1, and n_rows * panel_rows < 2^31.
constexpr int most_panels(int n_rows, int n_parts, int panel_rows) {
  return (n_rows + std::min(n_rows, n_parts) * (panel_rows - 1)) / panel_rows;
}

}  // namespace coppice::matmul::cuda
