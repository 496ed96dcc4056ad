// How long threads of this process have waited for a processor: the system's word on whether there are neighbours.
#pragma once

#include <chrono>
#include <span>
#include <vector>

namespace coppice::port {

/// Of the calling thread, and of all of this process's (empty where the system doesn't tell).
int this_thread_id();
std::vector<int> thread_ids();

/// Owns a descriptor for each thread. Not thread safe.
class RunDelays {
 public:
  explicit RunDelays(std::span<const int> thread_ids);
  ~RunDelays();
  RunDelays(const RunDelays&) = delete;
  RunDelays& operator=(const RunDelays&) = delete;

  /// False: the system doesn't tell, and sum() is always 0.
  bool known() const { return !files_.empty(); }
  /// Of all the threads since they began: the time in which they could have run, but another one had the processor.
  /// Microseconds of work for each thread.
  std::chrono::nanoseconds sum() const;

 private:
  std::vector<int> files_;
};

}  // namespace coppice::port
