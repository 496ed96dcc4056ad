// A layer's mixture of experts in a step on an NVIDIA GPU: launches only (decoder_step.h). Per layer: scores, choice,
// sort, gate and up of all pairs of a row and an expert, gated unit, down, weighted sum. What experts rows take stays
// on the device, so arrays have room for the worst case and launches read there how much is valid.
#pragma once

#include <cstdint>

#include "executor/cuda/expert_operators.h"
#include "executor/cuda/packed_matrices.h"
#include "matmul/cuda/part_product.h"

namespace coppice::executor::cuda {

/// Weights of a layer's experts; in device memory. Shapes are ExpertsShape's, the same in all layers that have experts.
struct ExpertsLayer {
  PackedMatrix router;  ///< n_embd to n; no weights: the layer has no experts
  const float *router_bias = nullptr, *selection_bias = nullptr, *scales = nullptr;  ///< ChooseExperts
  PackedMatrices gate_up;  ///< n_embd to 2 n_ff: the first expert's, and where the others' are
  PackedMatrix down;       ///< n_ff to n_embd, likewise
  const float *gate_bias = nullptr, *up_bias = nullptr;  ///< [n][n_ff]; nullptr: there is none
  const float* down_bias = nullptr;                      ///< [n][n_embd], likewise
  const float* beside_gate = nullptr;                    ///< [n_embd] (ChooseExperts); nullptr: there is none

  bool is_there() const { return router.weights != nullptr; }
};

/// For the pairs of n_rows rows.
struct ExpertsScratch {
  std::int32_t *experts = nullptr, *positions = nullptr;            ///< [pairs] (SortPairs)
  std::int32_t *sorted_pairs = nullptr, *sorted_experts = nullptr;  ///< likewise
  float* weights = nullptr;                                         ///< [pairs]
  float* beside_weights = nullptr;                                  ///< [n_rows]
  matmul::cuda::RowPanel* panels = nullptr;                         ///< [pairs], more than there can be
  std::int32_t* n_panels = nullptr;                                 ///< [1]
  void* x = nullptr;                                                ///< [pairs][n_embd] bf16
  float* product = nullptr;                                         ///< [pairs] of the wider product
  void* gated = nullptr;                                            ///< [pairs][n_ff] bf16
};
/// Numbers of a pair of ExpertsScratch::product.
int widest_expert_product(const ExpertsShape& shape, int n_embd);

struct ExpertsStep {
  ExpertsShape shape;
  int n_embd = 0, n_rows = 0;
  const void* x = nullptr;  ///< [n_rows][n_embd] bf16: what router and experts read
  float* out = nullptr;     ///< [n_rows] of n_embd or n, whichever is more: scores first; [n_rows][n_embd] the sum
  ExpertsScratch scratch;
  matmul::cuda::ProductScratch products;
};

/// All but the sum; `out` may be used in between. Nullptr or why not.
const char* launch_experts(const ExpertsLayer& layer, const ExpertsStep& step, const Gpu& gpu);
/// Behind that: out = the sum; beside: out += the sum.
const char* launch_experts_sum(const ExpertsLayer& layer, const ExpertsStep& step, bool beside, const Gpu& gpu);

}  // namespace coppice::executor::cuda
