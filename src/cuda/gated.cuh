// gate(z) * u of a gated linear unit, for kernels that have both.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

#include "cuda/gate.h"
#include "cuda/warp_product.cuh"

namespace coppice::cuda {

/// A gate as numbers: all are z / (1 + 2^(z (a + b z^2))), since (1 + tanh(x)) / 2 = 1 / (1 + exp(-2 x)). So a kernel
/// that is told the gate when it runs has it once, without a branch.
struct GateForm {
  float a = -1.4426950408889634F, b = 0.0F;  ///< 1 / ln 2
  float most = INFINITY;                     ///< z is no more
  float most_up = INFINITY, plus = 0.0F;     ///< u is in [-most_up, most_up]; then this is added

  __device__ explicit GateForm(Gate gate) {
    if (gate == Gate::kGelu) {
      a *= 1.5957691216057308F;  // 2 sqrt(2 / pi)
      b = 0.044715F * a;
    } else if (gate == Gate::kClamped) {
      a *= 1.702F;
      most = most_up = 7.0F;
      plus = 1.0F;
    }
  }
  __device__ float operator()(float z, float u) const {
    z = fminf(z, most);
    u = fminf(fmaxf(u, -most_up), most_up) + plus;
    return __fdividef(z, 1.0F + exp2_fast(z * fmaf(b * z, z, a))) * u;
  }
};

}  // namespace coppice::cuda
