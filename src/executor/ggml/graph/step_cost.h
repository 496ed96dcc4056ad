// StepCost: how many threads a step is worth. Each thread more has less to do, and at each node one more thread is
// waited for.
//
// That holds up to some sixteen. Beyond them it is up to the machine: processors of a virtual one may share cores with
// each other and with others, which it isn't told. So twice as many are tried when so many are known, and stay where
// the step is faster.
#pragma once

#include <algorithm>
#include <cmath>

namespace coppice::executor {

class StepCost {
 public:
  /// Seconds that a node takes longer for each thread that shares it
  /// (docs/decisions.md, "As many threads as free cores").
  static constexpr double kShare = 0.35e-6;

  /// n_shared: the graph's nodes that threads share.
  explicit StepCost(int n_shared) : sharing_(std::max(n_shared, 1) * kShare) {}

  /// Where work / n + sharing * n is least.
  int threads(int most) const {
    most = std::min(most, trying_ ? 2 * limit_ : limit_);
    if (!known_) return most;
    return std::clamp(static_cast<int>(std::lround(std::sqrt(work_ / sharing_))), 1, most);
  }

  void ran(int n_threads, double seconds) {
    const double work = n_threads * std::max(seconds - sharing_ * n_threads, 0.0);
    work_ = known_ ? work_ + kForget * (work - work_) : work;
    known_ = true;
    if (trying_ ? n_threads > limit_ : n_threads == limit_) try_out(seconds);
  }

 private:
  /// A run with as many threads as there may be.
  void try_out(double seconds) {
    least_ = n_runs_ == 0 ? seconds : std::min(least_, seconds);
    if (++n_runs_ < (trying_ ? kRuns : wait_)) return;
    n_runs_ = 0;
    if (!trying_) {
      before_ = least_;
      trying_ = true;
      return;
    }
    trying_ = false;
    wait_ = least_ < kFaster * before_ ? kRuns : kWait;
    if (wait_ == kRuns) limit_ *= 2;
  }

  static constexpr int kRuns = 3, kWait = 200;  ///< of a trial, and before the next one where one has failed
  static constexpr double kFaster = 0.97;
  int limit_ = 16;  ///< threads, a power of two
  bool trying_ = false;
  int n_runs_ = 0, wait_ = kRuns;
  double least_ = 0, before_ = 0;  ///< seconds of a run, with so many threads and with half as many

  static constexpr double kForget = 0.2;
  double sharing_;
  double work_ = 0;  ///< seconds of one thread
  bool known_ = false;
};

}  // namespace coppice::executor
