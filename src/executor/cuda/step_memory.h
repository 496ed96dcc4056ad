// StepMemory: the GPU's memory for a step, apart from weights and pool: what the step reads (StepPlan), and scratch. All of it has its place
// from the start, so that a captured step stays valid. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/decoder_step.h"
#include "executor/cuda/device_memory.h"
#include "executor/cuda/step_plan.h"

namespace coppice::executor::cuda {

/// Logits of so many rows have room at once.
inline constexpr int kMostLogitRows = 256;

class StepMemory {
 public:
  /// bytes: the pool holds signed bytes (TreeAttention::bytes). page_bytes: from one block of the pool to the next.
  StepMemory(const DecoderShape& shape, const StepLimits& limits, std::span<const AttentionGroup> groups, int n_workers,
             bool bytes, std::size_t page_bytes);
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;

  /// Copies what a planned batch gives to read; the copies run on `stream`. REQUIRES: what was copied before has been read.
  void upload(const Batch& batch, const StepPlan& plan, CUstream_st* stream);

  /// With pointers into this.
  DecoderStep step(int n_rows) const;
  /// The batch's wanted rows [first, first + n): those of logits, then those of hidden states.
  OutputRows outputs(int first, int n, bool logits) const;

  int most_logit_rows() const { return most_logit_rows_; }

 private:
  /// A part of arena_, and where it is staged.
  struct Place {
    std::size_t at = 0;
    std::size_t bytes = 0;
  };
  struct GroupPlaces {
    Place slots, counts, items, rows, merge_rows;
  };

  Place place(std::size_t bytes);
  void stage(const Place& place, const void* from, std::size_t bytes);
  void copy(std::size_t at, std::size_t bytes, CUstream_st* stream);

  DecoderShape shape_;
  int n_workers_;
  int most_logit_rows_;
  std::size_t end_ = 0;
  Place tokens_, positions_, outputs_;
  std::size_t head_end_ = 0;  ///< all that is small lies before it, and is copied at once
  std::vector<GroupPlaces> places_;
  DeviceMemory arena_, residual_, product_, normed_, gated_, q_, attended_, sums_, flags_, tree_sums_, tree_states_,
      tree_control_, logits_;
  PinnedMemory staged_;
  std::vector<GroupStep> groups_;
};

}  // namespace coppice::executor::cuda
