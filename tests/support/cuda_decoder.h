// A decoder on the GPU with random weights, and a step's memory, for the GPU's test and benchmark.
#pragma once

#include <memory>
#include <vector>

#include "executor/cuda/decoder_step.h"
#include "support/cuda_step.h"

namespace coppice::test {

/// Memory for a step over the rows of `c`: rows at the ends of its sequences, with tokens given.
class DecoderStepMemory {
 public:
  /// Greedy sampling.
  DecoderStepMemory(const executor::cuda::DecoderShape& shape, const AttentionCase& c,
                    std::vector<std::int32_t> tokens);

  const executor::cuda::DecoderStep& step() const { return step_; }
  std::vector<float> logits() const;
  std::vector<std::int32_t> drawn() const;

 private:
  std::size_t n_logits_, n_rows_;
  CudaStep attention_;
  DeviceBytes tokens_, positions_, slots_, residual_, product_, normed_, gated_, sums_, flags_, logits_, specs_,
      edited_, candidates_, drawn_;
  executor::cuda::DecoderStep step_;
};

/// Slots of the pool and positions of a case's rows.
struct RowPlaces {
  std::vector<std::int32_t> slots, positions;
  explicit RowPlaces(const AttentionCase& c);
};

int n_multiprocessors();

}  // namespace coppice::test
