// Owners of a CUDA stream and of an event, on the GPU that is current when they are made. Not copied.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "executor/cuda/device_memory.h"

namespace coppice::executor::cuda {

class Stream {
 public:
  Stream() {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream");
    stream_.reset(made);
  }
  cudaStream_t get() const { return stream_.get(); }

 private:
  struct End {
    void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<CUstream_st, End> stream_;
};

class Event {
 public:
  Event() {
    cudaEvent_t made = nullptr;
    check(cudaEventCreate(&made), "event");
    event_.reset(made);
  }
  void record(const Stream& stream) const { check(cudaEventRecord(event_.get(), stream.get()), "event"); }
  void wait() const { check(cudaEventSynchronize(event_.get()), "step"); }
  /// From another one to this. REQUIRES: both have happened.
  double seconds_since(const Event& before) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before.event_.get(), event_.get()), "event");
    return static_cast<double>(milliseconds) / 1000;
  }

 private:
  struct End {
    void operator()(CUevent_st* event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<CUevent_st, End> event_;
};

}  // namespace coppice::executor::cuda
