// A decoder on the GPU with random weights, and a step's memory, for the GPU's test and benchmark.
#pragma once

#include <memory>
#include <vector>

#include "executor/cuda/decoder_step.h"
#include "support/cuda_step.h"

namespace coppice::test {

/// A Llama all of whose layers have the same heads.
struct LlamaShape {
  int n_embd = 0, n_head = 0, n_kv_head = 0, head_dim = 0;
  int n_ff = 0, n_vocab = 0;
  float eps = 1e-5F;

  constexpr int n_q() const { return n_head * head_dim; }
  constexpr int n_kv() const { return n_kv_head * head_dim; }
  executor::cuda::DecoderShape decoder() const {
    return {.n_embd = n_embd, .n_q = n_q(), .n_qkv = n_q() + 2 * n_kv(), .n_ff = n_ff, .n_vocab = n_vocab, .eps = eps};
  }
};

/// Memory for a step over the rows of `c`: rows at the ends of its sequences, with tokens given.
class DecoderStepMemory {
 public:
  /// Greedy sampling.
  DecoderStepMemory(const LlamaShape& shape, const AttentionCase& c, const std::vector<std::int32_t>& tokens);
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
