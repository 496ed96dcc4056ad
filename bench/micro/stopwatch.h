// Times a step that several threads take together. Wall time is from the moment all begin to the moment the last has
// ended; processor time is the sum over the threads, and is what to trust while others use the machine.
#pragma once

#include <functional>
#include <vector>

namespace coppice::bench {

/// Seconds of each repetition.
struct Samples {
  std::vector<double> wall;
  std::vector<double> cpu;  ///< all threads together

  void append(const Samples& more);
};

/// REQUIRES: not empty.
double median(std::vector<double> x);

/// Threads that wait for each other by spinning, as ggml's workers do.
class Barrier {
 public:
  virtual ~Barrier() = default;
  virtual void wait() = 0;
};

/// Calls step(worker, barrier) on n_threads threads, once to warm up, then `repetitions` times. Workers of a step may
/// wait at the barrier, all equally often.
Samples time_step(int n_threads, int repetitions, const std::function<void(int, Barrier&)>& step);

}  // namespace coppice::bench
