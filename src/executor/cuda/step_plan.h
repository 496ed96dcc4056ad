// StepPlan: what a batch gives the GPU to read: tokens, positions, and of each layer group slots and the plan of
// attention. On the host; knows no CUDA. Keeps its arrays, so a step in the steady state allocates nothing but small
// vectors. Not thread safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "attention/cuda/tree_plan.h"
#include "executor/base/attention_groups.h"
#include "executor/executor.h"

namespace coppice::executor::cuda {

/// Capacities of a step's arrays.
struct StepLimits {
  int max_rows = 0;
  int max_sequences = 0;
  attention::cuda::TreeLimits tree;
};

/// Of a row's attention, each of the group that has most.
struct HeadCounts {
  int heads = 0;
  int values = 0;  ///< of all heads
};
HeadCounts most_heads(std::span<const AttentionGroup> groups);

/// As many partial states as any step of one row has, and as many as any other has, but no more than fit into
/// state_bytes: a batch whose plan doesn't fit is run in parts. context: the longest sequence.
StepLimits step_limits(int max_rows, int max_sequences, int context, std::span<const AttentionGroup> groups,
                       std::size_t state_bytes);

/// Memory for partial states on a GPU of so much: so that the steps of a long prompt fit whole, up to 4,096 rows where
/// the card has 80 GB.
std::size_t state_bytes(std::size_t gpu_bytes);

class StepPlan {
 public:
  /// The plan of attention of a layer group.
  struct Group {
    std::span<const std::int32_t> slots;  ///< [rows]
    const attention::cuda::TreePlan* tree = nullptr;
  };

  /// position_size: numbers of a position, one or time, height and width. plain_kernel: attention takes the kernel that
  /// needs no wgmma.
  StepPlan(const StepLimits& limits, std::span<const AttentionGroup> groups, int n_workers, int position_size = 1,
           bool plain_kernel = false);

  /// False: it doesn't fit into the limits, and nothing of the plan holds. Valid until the next call. REQUIRES: the
  /// batch is checked.
  bool plan(const Batch& batch);

  std::span<const std::int32_t> positions() const { return positions_; }  ///< [rows][position_size]
  const Group& group(std::size_t i) const { return groups_[i]; }

  /// Keys and values of all planned steps' attention, over all layers: what its items fetch, and what its rows see,
  /// each byte once.
  const KvTraffic& traffic() const { return traffic_; }

 private:
  struct Planners {
    attention::SharePlanner sharing;
    attention::cuda::TreePlanner tree;
    std::size_t bytes_per_token = 0;
    std::vector<std::int32_t> slots;
  };

  void find_positions(const Batch& batch);

  int max_rows_, position_size_;
  std::vector<Planners> planners_;
  std::vector<Group> groups_;
  std::vector<std::int32_t> positions_;
  std::vector<attention::SequenceRows> sequences_;
  KvTraffic traffic_;
};

/// Whether logits of all rows are as good as wanted: each sequence has but one, or wants logits or a token behind each
/// of its rows, and nobody a hidden state. So are decodes, and steps that verify guesses.
bool wants_all_logits(const Batch& batch);

/// The row before which a batch is cut in two: the nearest to its middle that begins a sequence, or before which a
/// sequence may be cut. 0: there is none.
int middle_cut(const Batch& batch);

/// Rows [first, first + n) of a batch as a batch of its own, which may run when the rows before have run. Copies and
/// what is wanted go along. Tables are the batch's. Of a sequence that is cut, the state between its parts lies where
/// the one behind it will. REQUIRES: 0 <= first, n >= 1, and there are so many rows; the batch may be cut there.
Batch part_of(const Batch& batch, int first, int n);

}  // namespace coppice::executor::cuda
