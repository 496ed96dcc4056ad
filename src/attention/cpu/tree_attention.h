// Tree attention on the CPU: one pass over a SharePlan's runs. partials() reads each tile's blocks once for all
// rows and heads that stand on it; merge() joins the partial states of rows whose keys lay in several tiles. Decode,
// chunked prefill and steps that mix them are the same call.
//
// Every worker calls partials() and merge() once, with a barrier between the two that the caller provides (the border
// of two graph nodes). prepare() comes before, on one thread. The layers of a group share one TreeStep: their calls
// don't overlap.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "attention/layout.h"
#include "attention/plan/schedule.h"
#include "attention/plan/share_plan.h"

namespace coppice::attention {

/// What a step's layers of one group have in common. Refilled each step.
struct TreeStep {
  SharePlan const* plan = nullptr;
  Schedule schedule;
};

/// One call: one layer.
struct TreeCall {
  PoolView pool;
  const float* q = nullptr;  ///< [n_rows, n_head, head_dim]
};

/// Owns the workers' scratch memory and the partial states. Thread safe as said above.
class TreeAttention {
 public:
  /// What of this shape the kernel can't serve, as part of a sentence; empty: nothing.
  static std::string misfit(const HeadShape& heads, int block_size);

  /// REQUIRES: misfit() is empty.
  TreeAttention(const HeadShape& heads, int block_size, int n_workers);
  ~TreeAttention();
  TreeAttention(const TreeAttention&) = delete;
  TreeAttention& operator=(const TreeAttention&) = delete;

  /// What tiles cost this kernel, and how many rows one may have: for make_schedule.
  /// Two workers need fewer pieces (docs/decisions.md, "Cuts by plan"): the last bits depend on how many there may be,
  /// not on how many there are in a step.
  CostModel cost_model() const;

  /// Sizes the partial states for a schedule. Before the step's first call.
  void prepare(const Schedule& schedule);

  /// Claims jobs from next_unit, 0 at first, until none is left; where there are few for n_workers, some key heads of
  /// one at a time. A head's states don't depend on that.
  void partials(const TreeStep& step, const TreeCall& call, std::atomic<std::int32_t>& next_unit, int worker,
                int n_workers);
  /// out: [n_rows, n_head, head_dim]; rows behind the plan's become zeros. format: the pool's. sinks: as merge_row's.
  void merge(const TreeStep& step, KvFormat format, float* out, int n_rows, int worker, int n_workers,
             const float* sinks = nullptr) const;

  /// Bytes of keys and values loaded since construction, counted tile by tile as they are read. Between steps only.
  std::uint64_t bytes_read() const;

 private:
  struct Worker;
  HeadShape heads_;
  std::vector<Worker> workers_;
  std::vector<float> states_;  ///< [n_partials][n_head][head_dim + 2]: acc, max, sum
};

}  // namespace coppice::attention
