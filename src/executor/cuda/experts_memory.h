// ExpertsMemory: the GPU's memory for the experts of a step, with room for the worst case: each row may take any of
// them.
#pragma once

#include "executor/cuda/device_memory.h"
#include "executor/cuda/experts_step.h"

namespace coppice::executor::cuda {

class ExpertsMemory {
 public:
  ExpertsMemory() = default;  ///< of a model without experts
  /// For up to max_rows rows. Throws model::LoadError.
  ExpertsMemory(const ExpertsShape& shape, int n_embd, int max_rows);

  /// Pointers into this.
  ExpertsScratch scratch() const;

 private:
  DeviceMemory choice_, panels_, x_, product_, gated_;
  std::size_t n_pairs_ = 0;
};

}  // namespace coppice::executor::cuda
