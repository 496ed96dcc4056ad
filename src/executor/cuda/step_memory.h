// StepMemory: the GPU's memory for a step, apart from weights and pool: what the step reads (StepPlan), and scratch.
// All of it has its place from the start, so that a captured step stays valid. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/decoder_step.h"
#include "executor/cuda/device_memory.h"
#include "executor/cuda/experts_memory.h"
#include "executor/cuda/step_plan.h"

namespace coppice::executor::cuda {

/// Logits that the host reads have room for so many rows at once.
inline constexpr int kMostLogitRows = 256;
/// A step is staged while the one before may still be copied.
inline constexpr int kStaged = 2;

class StepMemory {
 public:
  /// bytes: the pool holds signed bytes (TreeAttention::bytes). page_bytes: from one block of the pool to the next.
  StepMemory(const Gpu& gpu, const DecoderShape& shape, const StepLimits& limits,
             std::span<const AttentionGroup> groups, bool bytes, std::size_t page_bytes);
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  /// Copies what a planned batch gives to read, and which rows something is wanted of, [at most kWanted * max_rows];
  /// the copies run on `stream`. staging: below kStaged. REQUIRES: what was staged there before is copied.
  void upload(const Batch& batch, const StepPlan& plan, std::span<const std::int32_t> wanted, int staging,
              CUstream_st* stream);
  static constexpr int kWanted = 3;

  /// With pointers into this. Rows are given if the last batch has some.
  DecoderStep step(int n_rows) const;
  /// Of upload()'s `wanted`, n from `first` on.
  OutputRows outputs(int first, int n, float* logits) const;

  /// [most_logit_rows()][n_vocab], for the host to read.
  float* logits() const { return logits_.as<float>(); }
  int most_logit_rows() const { return most_logit_rows_; }
  /// [most_samples()][n_vocab], for the device to sample from.
  float* sampled_logits() const { return sampled_logits_.as<float>(); }
  int most_samples() const { return most_samples_; }

 private:
  /// A part of arena_, and where it is staged.
  struct Region {
    std::size_t at = 0;
    std::size_t bytes = 0;
  };
  struct GroupPlaces {
    Region slots, counts, items, rows, merge_rows;
  };

  Region place(std::size_t bytes);
  std::byte* staged(std::size_t at) const { return staged_.as<std::byte>(staging_ * end_ + at); }
  void stage(const Region& place, const void* from, std::size_t bytes);
  void copy(std::size_t at, std::size_t bytes, CUstream_st* stream);
  void upload_rows(const Batch& batch, CUstream_st* stream);

  DecoderShape shape_;
  int max_rows_;
  int most_logit_rows_, most_samples_;
  std::size_t staging_ = 0;  ///< of the upload in hand
  std::size_t end_ = 0;
  Region rows_, positions_, outputs_;
  std::size_t head_end_ = 0;  ///< all that is small lies before it, and is copied at once
  std::vector<GroupPlaces> places_;
  DeviceMemory given_;         ///< taken when a batch first has embeddings: most servers see none
  PinnedMemory staged_given_;  ///< likewise
  bool has_given_ = false;     ///< the last batch
  DeviceMemory arena_, residual_, product_, normed_, gated_, q_, attended_, sums_, flags_, tree_sums_, tree_states_,
      tree_control_, logits_, sampled_logits_;
  ExpertsMemory experts_;
  PinnedMemory staged_;
  std::vector<GroupStep> groups_;
};

}  // namespace coppice::executor::cuda
