// ThreadsBeside: threads of this process that compute beside the engine's steps for a while, such as an encoder's. Steps leave them their
// processors: two sets of threads that wait for each other on the same ones would both be many times slower.
#pragma once

#include <atomic>

namespace coppice::port {

/// While it lives, so many compute. Any thread.
class ThreadsBeside {
 public:
  explicit ThreadsBeside(int n) : n_(n) { count_ += n; }
  ~ThreadsBeside() { count_ -= n_; }
  ThreadsBeside(const ThreadsBeside&) = delete;
  ThreadsBeside& operator=(const ThreadsBeside&) = delete;

  static int count() { return count_; }

 private:
  static inline std::atomic<int> count_ = 0;
  int n_;
};

}  // namespace coppice::port
