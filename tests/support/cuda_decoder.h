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
                    const std::vector<std::int32_t>& tokens);
  DecoderStepMemory(const DecoderStepMemory&) = delete;  // the step points to its group
  DecoderStepMemory& operator=(const DecoderStepMemory&) = delete;

  const executor::cuda::DecoderStep& step() const { return step_; }
  const executor::cuda::SampleRows& sampling() const { return sampling_; }
  /// From tokens to tokens, of all rows.
  void launch(const executor::cuda::Decoder& decoder, const cuda::Gpu& gpu) const;
  /// A prompt's: from tokens to the logits of the last row.
  void launch_prompt(const executor::cuda::Decoder& decoder, const cuda::Gpu& gpu) const;
  std::vector<float> logits() const;
  std::vector<std::int32_t> drawn() const;

 private:
  std::size_t n_logits_, n_rows_;
  CudaStep attention_;
  DeviceBytes tokens_, positions_, slots_, all_rows_, residual_, product_, normed_, gated_, sums_, flags_, logits_,
      specs_, edited_, candidates_, drawn_;
  executor::cuda::GroupStep group_;
  executor::cuda::DecoderStep step_;
  executor::cuda::SampleRows sampling_;
};

/// Slots of the pool and positions of a case's rows.
struct RowPlaces {
  std::vector<std::int32_t> slots, positions;
  explicit RowPlaces(const AttentionCase& c);
};

}  // namespace coppice::test
