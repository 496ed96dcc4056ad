// StepRunner: gives planned steps to the executor, waits for them, and keeps the time that they take. Not thread safe;
// the engine's thread owns it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/planned_step.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

class StepRunner {
 public:
  explicit StepRunner(executor::Executor& executor)
      : executor_(executor), planned_before_(executor.planning_seconds()) {}

  /// For the block operations of the next step: empty.
  std::vector<kv::BlockOp>& block_ops() {
    batch_.block_ops.clear();
    return batch_.block_ops;
  }
  /// For the places outside of the pool that they name: empty.
  std::vector<std::span<std::byte>>& outside() {
    batch_.outside.clear();
    return batch_.outside;
  }
  std::vector<kv::BlockOp>& ops_to_extend() { return batch_.block_ops; }  ///< those that block_ops() has become
  /// The next step as a batch. REQUIRES: no part's sequence has left.
  void build(const kv::Cache& cache, const PlannedStep& step);

  /// Begins the step that was built. Throws what the executor throws; then it isn't begun. REQUIRES: it has no rows, or
  /// the weights are awake.
  void submit(PlannedStep& step);
  /// specs: [step.draws].
  void sample(const PlannedStep& step, std::span<const sampling::SamplerSpec> specs);
  /// Throws what the executor throws; then the step that was submitted behind it has failed, too. What it returns is
  /// valid until the next call.
  const executor::Result& wait(PlannedStep& step);

  /// Lets the weights' memory go. False: the executor can't. REQUIRES: no step is under way.
  bool sleep() { return asleep_ = executor_.sleep(); }
  /// Reads some of the weights again. Throws what the executor throws; then they sleep on. REQUIRES: asleep().
  void wake();
  bool asleep() const { return asleep_; }
  bool waking() const { return waking_; }                    ///< some are there again
  std::int64_t wakes() const { return wakes_; }              ///< since start
  double waking_seconds() const { return waking_seconds_; }  ///< of all of them

  const executor::ExecutorInfo& info() const { return executor_.info(); }
  double seconds_of_last() const { return seconds_of_last_; }  ///< that the last step took, beside the one before it
  executor::DeviceFigures device_figures() const { return executor_.device_figures(); }
  executor::ThreadFigures thread_figures() const { return executor_.thread_figures(); }
  /// In submit() and wait(), without the executor's own planning: that is bookkeeping, whoever does it.
  double forward_seconds() const { return seconds_ - (executor_.planning_seconds() - planned_before_); }

 private:
  executor::Executor& executor_;
  executor::Batch batch_;
  executor::Result result_;
  double planned_before_;  // by the executor, before this was made
  double seconds_ = 0;     // inside the executor, its planning included
  double seconds_of_last_ = 0;
  bool asleep_ = false, waking_ = false;
  std::int64_t wakes_ = 0;
  double waking_seconds_ = 0;
  Clock::time_point waited_{};  // when the last step was done
};

}  // namespace coppice::engine
