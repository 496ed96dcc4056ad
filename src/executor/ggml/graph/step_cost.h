// StepCost: how many threads a step is worth. Each thread more has less to do, and at each node one more thread is waited for.
#pragma once

#include <algorithm>
#include <cmath>

namespace coppice::executor {

class StepCost {
 public:
  /// Seconds that a node takes longer for each thread that shares it (docs/adr/0060-threads-that-sleep.md).
  static constexpr double kShare = 0.35e-6;

  /// n_shared: the graph's nodes that threads share.
  explicit StepCost(int n_shared) : sharing_(std::max(n_shared, 1) * kShare) {}

  /// work / n + sharing * n is least.
  int threads(int most) const {
    if (!known_) return most;
    return std::clamp(static_cast<int>(std::lround(std::sqrt(work_ / sharing_))), 1, most);
  }

  void ran(int n_threads, double seconds) {
    const double work = n_threads * std::max(seconds - sharing_ * n_threads, 0.0);
    work_ = known_ ? work_ + kForget * (work - work_) : work;
    known_ = true;
  }

 private:
  static constexpr double kForget = 0.2;
  double sharing_;
  double work_ = 0;  ///< seconds of one thread
  bool known_ = false;
};

}  // namespace coppice::executor
