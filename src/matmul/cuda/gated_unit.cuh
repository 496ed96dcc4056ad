// The end of a product of gate and up (GatedOutput): a lane that has the sums of a pair has what the gated unit gives.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/gated.cuh"
#include "matmul/cuda/quant_product.h"

namespace coppice::matmul::cuda {

/// One output of the unit.
struct GatedUnit {
  coppice::cuda::GateForm gate;
  float gate_bias, up_bias;

  __device__ GatedUnit(const GatedOutput& of, int output)
      : gate(of.gate),
        gate_bias(of.gate_bias != nullptr ? of.gate_bias[output] : 0.0F),
        up_bias(of.up_bias != nullptr ? of.up_bias[output] : 0.0F) {}
  __device__ float operator()(float z, float u) const { return gate(z + gate_bias, u + up_bias); }
};

__device__ inline void write_gated(const QuantProduct& p, int row, int output, float z, float u) {
  static_cast<__nv_bfloat16*>(p.gated.out)[static_cast<std::int64_t>(row) * (p.n_out / 2) + output] =
      __float2bfloat16_rn(GatedUnit(p.gated, output)(z, u));
}

}  // namespace coppice::matmul::cuda
