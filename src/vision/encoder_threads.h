// EncoderThreads: the threads that compute an encoder's graphs, and how they leave the processors to the engine's
// steps.
//
// A graph is computed in pieces, a large product each. Before a piece it is looked whether steps run: where none does,
// all threads compute; else a few, and only a part of the time, so that steps have three quarters of it
// (port/threads_beside.h). Nobody spins for longer than a thread takes to sleep and wake. Between two pieces it may end
// early.
//
// Owns its threads; they begin with the first graph, with the priority of the thread that calls. Thread safety: none.
#pragma once

#include <functional>

struct ggml_threadpool;

namespace coppice::vision {

class EncoderThreads {
 public:
  /// most: threads.
  explicit EncoderThreads(int most) : most_(most) {}
  ~EncoderThreads();
  EncoderThreads(const EncoderThreads&) = delete;
  EncoderThreads& operator=(const EncoderThreads&) = delete;

  /// Calls `encode`, and computes the graphs that libmtmd makes meanwhile on this thread. `stop`: asked between two
  /// pieces; true: the graph's computation fails. Throws what `encode` throws.
  void run(const std::function<void()>& encode, const std::function<bool()>& stop);

  int most() const { return most_; }

 private:
  class Graph;
  struct Hook;

  const int most_;
  ggml_threadpool* pool_ = nullptr;
  void (*free_pool_)(ggml_threadpool*) = nullptr;
};

}  // namespace coppice::vision
