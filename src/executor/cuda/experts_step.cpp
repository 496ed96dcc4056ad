#include "executor/cuda/experts_step.h"

#include <algorithm>

namespace coppice::executor::cuda {

namespace {

/// Launches one after the other, until one fails.
class ExpertsLauncher {
 public:
  ExpertsLauncher(const ExpertsLayer& layer, const ExpertsStep& step, const Gpu& gpu)
      : layer_(layer), step_(step), shape_(step.shape), scratch_(step.scratch), gpu_(gpu) {}

  const char* run() {
    choose();
    sort();
    multiply();
    return error_;
  }

 private:
  void keep(const char* error) {
    if (error_ == nullptr) error_ = error;
  }
  int n_pairs() const { return step_.n_rows * shape_.n_used; }
  /// A row takes an expert once.
  int panel_rows() const { return matmul::cuda::panel_rows(gpu_, n_pairs(), shape_.n, step_.n_rows); }

  void choose() {
    keep(matmul::cuda::launch_quant_product({.type = layer_.router.type,
                                             .n_in = step_.n_embd,
                                             .n_out = shape_.n,
                                             .n_rows = step_.n_rows,
                                             .weights = layer_.router.weights,
                                             .x = step_.x,
                                             .y = step_.out,
                                             .scratch = step_.products},
                                            gpu_));
    keep(launch(ChooseExperts{.shape = shape_,
                              .n_rows = step_.n_rows,
                              .scores = step_.out,
                              .bias = layer_.router_bias,
                              .selection_bias = layer_.selection_bias,
                              .scales = layer_.scales,
                              .experts = scratch_.experts,
                              .weights = scratch_.weights,
                              .n_embd = step_.n_embd,
                              .x = step_.x,
                              .beside_gate = layer_.beside_gate,
                              .beside_weights = scratch_.beside_weights},
                gpu_));
  }

  void sort() {
    constexpr int kFew = 8;
    const bool few = step_.n_rows <= kFew;
    keep(launch(SortPairs{.n = shape_.n,
                          .n_used = shape_.n_used,
                          .n_rows = step_.n_rows,
                          .n_embd = step_.n_embd,
                          .panel_rows = panel_rows(),
                          .experts = scratch_.experts,
                          .x = step_.x,
                          .positions = scratch_.positions,
                          .sorted_pairs = scratch_.sorted_pairs,
                          .sorted_experts = scratch_.sorted_experts,
                          .sorted_x = few ? scratch_.x : nullptr,
                          .panels = scratch_.panels,
                          .n_panels = scratch_.n_panels},
                gpu_));
    if (few) return;
    keep(launch(BringRows{.n_used = shape_.n_used,
                          .n_rows = step_.n_rows,
                          .n_embd = step_.n_embd,
                          .sorted_pairs = scratch_.sorted_pairs,
                          .x = step_.x,
                          .sorted_x = scratch_.x},
                gpu_));
  }

  void multiply(const PackedMatrix& matrix, int n_in, int n_out, const void* x, float* y) {
    keep(matmul::cuda::launch_part_product({.type = matrix.type,
                                            .n_in = n_in,
                                            .n_out = n_out,
                                            .n_rows = n_pairs(),
                                            .weights = matrix.weights,
                                            .x = x,
                                            .y = y,
                                            .scratch = step_.products},
                                           {.n_parts = shape_.n,
                                            .panel_rows = panel_rows(),
                                            .panels = scratch_.panels,
                                            .n_panels = scratch_.n_panels,
                                            .part_bytes = matrix.bytes},
                                           gpu_));
  }

  void multiply() {
    const auto& both = layer_.gate_up;
    float* y = scratch_.product;
    for (int i = 0; i < both.n; ++i) {
      const PackedMatrices::Part& part = both.parts[static_cast<std::size_t>(i)];
      multiply(part.matrix, step_.n_embd, part.n_out, scratch_.x, y);
      y += static_cast<std::size_t>(n_pairs()) * static_cast<std::size_t>(part.n_out);
    }
    keep(launch(GateRows{.gate = shape_.gate,
                         .n = shape_.n_ff,
                         .n_rows = n_pairs(),
                         .from_gate = both.rows(scratch_.product, n_pairs(), 0),
                         .from_up = both.rows(scratch_.product, n_pairs(), shape_.n_ff),
                         .weights = shape_.weighs_inputs ? scratch_.weights : nullptr,
                         .pairs = scratch_.sorted_pairs,
                         .gate_bias = layer_.gate_bias,
                         .up_bias = layer_.up_bias,
                         .parts = scratch_.sorted_experts,
                         .out = scratch_.gated},
                gpu_));
    multiply(layer_.down, shape_.n_ff, step_.n_embd, scratch_.gated, scratch_.product);
  }

  const ExpertsLayer& layer_;
  const ExpertsStep& step_;
  const ExpertsShape& shape_;
  const ExpertsScratch& scratch_;
  const Gpu& gpu_;
  const char* error_ = nullptr;
};

}  // namespace

int widest_expert_product(const ExpertsShape& shape, int n_embd) {
  return std::max(2 * shape.n_ff, n_embd);
}

const char* launch_experts(const ExpertsLayer& layer, const ExpertsStep& step, const Gpu& gpu) {
  return ExpertsLauncher(layer, step, gpu).run();
}

const char* launch_experts_sum(const ExpertsLayer& layer, const ExpertsStep& step, bool beside, const Gpu& gpu) {
  return launch(SumExperts{.n = step.n_embd,
                           .n_used = step.shape.n_used,
                           .n_rows = step.n_rows,
                           .parts = step.scratch.product,
                           .bias = layer.down_bias,
                           .experts = step.scratch.experts,
                           .positions = step.scratch.positions,
                           .weights = step.shape.weighs_inputs ? nullptr : step.scratch.weights,
                           .beside = beside ? step.out : nullptr,
                           .beside_weights = layer.beside_gate != nullptr ? step.scratch.beside_weights : nullptr,
                           .out = step.out},
                gpu);
}

}  // namespace coppice::executor::cuda
