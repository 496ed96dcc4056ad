// Threads of this process that compute beside the engine's steps for a while, such as an encoder's, and the steps, so
// that each knows of the other. Two sets of threads that wait for each other on the same processors would both be many
// times slower.
//
// Thread safety: any number of threads at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace coppice::port {

/// While it lives, so many compute.
class ThreadsBeside {
 public:
  explicit ThreadsBeside(int n) : n_(n) { count_ += n; }
  ~ThreadsBeside() { count_ -= n_; }
  ThreadsBeside(const ThreadsBeside&) = delete;
  ThreadsBeside& operator=(const ThreadsBeside&) = delete;

  static int count() { return count_; }
  /// What is left to a step of n threads. Who computes beside steps gives way to them within some milliseconds, down to
  /// most().
  static int left(int n) { return std::max(1, n - std::min(most(n), count_.load())); }
  /// So many of n threads compute beside steps, at most: a quarter.
  static int most(int n) { return (n + 3) / 4; }

 private:
  static inline std::atomic<int> count_ = 0;
  int n_;
};

/// While it lives, a step computes.
class StepUnderWay {
 public:
  StepUnderWay() { ++count_; }
  ~StepUnderWay() {
    last_ = Clock::now().time_since_epoch().count();
    --count_;
  }
  StepUnderWay(const StepUnderWay&) = delete;
  StepUnderWay& operator=(const StepUnderWay&) = delete;

  /// One computes, or did so a moment ago: the next one of the same streams comes soon.
  static bool lately() {
    constexpr Clock::duration kMoment = std::chrono::milliseconds(50);
    return count_ > 0 || Clock::now().time_since_epoch().count() - last_ < kMoment.count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static inline std::atomic<int> count_ = 0;
  static inline std::atomic<Clock::rep> last_ =
      -std::chrono::duration_cast<Clock::duration>(std::chrono::hours(1)).count();
};

}  // namespace coppice::port
