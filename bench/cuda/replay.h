// Timing on a GPU: launches inside a CUDA graph, over several pools in turn so that nothing of one is left in the L2
// cache.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "support/cuda_step.h"

namespace coppice::bench {

constexpr int kPools = 8;

struct Timing {
  double median = 0.0, least = 0.0;  ///< microseconds a launch
};

/// launch(pool, gpu) for each of n pools, captured once.
class Graph {
 public:
  template <class Launch>
  explicit Graph(Launch launch, int n = kPools) : n_(n) {
    test::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
    test::check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    const cuda::Gpu gpu = test::current_gpu(stream_);
    for (int pool = 0; pool < n; ++pool) launch(pool, gpu);
    cudaGraph_t graph = nullptr;
    test::check_cuda(cudaStreamEndCapture(stream_, &graph), "capture");
    test::check_cuda(cudaGraphInstantiate(&graph_, graph, 0), "graph");
    cudaGraphDestroy(graph);
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
    cudaGraphExecDestroy(graph_);
    cudaStreamDestroy(stream_);
  }

  Timing time(int replays) {
    std::vector<double> all;
    for (int i = -3; i < replays; ++i) {
      cudaEventRecord(begin_, stream_);
      test::check_cuda(cudaGraphLaunch(graph_, stream_), "launch");
      cudaEventRecord(end_, stream_);
      test::check_cuda(cudaEventSynchronize(end_), "graph");
      float ms = 0.0F;
      cudaEventElapsedTime(&ms, begin_, end_);
      if (i >= 0) all.push_back(1e3 * static_cast<double>(ms) / n_);
    }
    std::ranges::sort(all);
    return {all[all.size() / 2], all.front()};
  }

 private:
  int n_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Bytes a second that a copy inside the device reads and writes.
inline double copy_bandwidth() {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  const test::DeviceBytes from(kBytes), to(kBytes);
  double best = 0.0;
  for (int i = 0; i < 8; ++i) {
    test::check_cuda(cudaDeviceSynchronize(), "copy");
    const auto begin = std::chrono::steady_clock::now();
    constexpr int kTimes = 5;
    for (int k = 0; k < kTimes; ++k) {
      test::check_cuda(cudaMemcpyAsync(to.as<void>(), from.as<void>(), kBytes, cudaMemcpyDeviceToDevice), "copy");
    }
    test::check_cuda(cudaDeviceSynchronize(), "copy");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, 2.0 * kTimes * static_cast<double>(kBytes) / seconds);
  }
  return best;
}

}  // namespace coppice::bench
