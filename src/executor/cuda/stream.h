// Owners of a CUDA stream and of an event, on the GPU that is current when they are made. Not copied.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "executor/cuda/device_memory.h"

namespace coppice::executor::cuda {

class CudaEvent;

class Stream {
 public:
  Stream() {
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "stream");
    stream_.reset(made);
  }
  cudaStream_t get() const { return stream_.get(); }
  /// What is put into it from now on comes behind what was in the other one when that event was recorded there.
  void follow(const CudaEvent& event) const;

 private:
  struct End {
    void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
  };
  std::unique_ptr<CUstream_st, End> stream_;
};

class CudaEvent {
 public:
  CudaEvent() {
    cudaEvent_t made = nullptr;
    check(cudaEventCreate(&made), "event");
    handle_.reset(made);
  }
  void record(const Stream& stream) const { check(cudaEventRecord(handle_.get(), stream.get()), "event"); }
  void wait() const { check(cudaEventSynchronize(handle_.get()), "step"); }
  cudaEvent_t get() const { return handle_.get(); }
  /// From another one to this. REQUIRES: both have happened.
  double seconds_since(const CudaEvent& before) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, before.handle_.get(), handle_.get()), "event");
    return static_cast<double>(milliseconds) / 1000;
  }

 private:
  struct End {
    void operator()(CUevent_st* event) const { cudaEventDestroy(event); }
  };
  std::unique_ptr<CUevent_st, End> handle_;
};

inline void Stream::follow(const CudaEvent& event) const {
  check(cudaStreamWaitEvent(get(), event.get(), 0), "event");
}

}  // namespace coppice::executor::cuda
