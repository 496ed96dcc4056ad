// Random blocks of quantised weights as a GGUF file has them, and what they mean, read weight by weight: independent of
// the packing, which reads whole blocks.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "matmul/quant_matrix.h"

namespace coppice::test {

/// d * s * q + m * t; scales and q are whole numbers, q is 0 in the middle of what it can be unless the type has m.
struct Weight {
  float d, m;
  int s, t, q;

  double scaled() const { return static_cast<double>(d) * s * q; }
  double offset() const { return static_cast<double>(m) * t; }
};

struct QuantWeights {
  std::vector<std::byte> bytes;
  std::vector<Weight> weights;  ///< [n_out, n_in]
};

QuantWeights random_weights(matmul::QuantType type, int n_in, int n_out, std::mt19937& random);

}  // namespace coppice::test
