// Gpu: one of the host's GPUs, as those who launch kernels there know it. It is passed down to each launch, and nothing
// else says what "the device" is like or what was set there: one process may use several.
//
// A model on several GPUs is to come. Launches are given a Gpu; one each in executor/cuda/cuda_executor.cpp and
// step_launcher.h. Its layers: decoder_step.cpp, device_weights.cpp there; its memory and stream: step_memory.cpp,
// device_memory.h, stream.h; which GPUs: CudaOptions, cli/devices.cpp; figures: DeviceFigures in
// executor/executor.h; a split pool: take_pool() in cuda_executor.cpp, layer_places() in
// executor/base/attention_groups.cpp.
#pragma once

#include <unordered_set>

struct CUstream_st;

namespace coppice::cuda {

/// One thread at a time uses one. It makes the GPU its current one (cudaSetDevice) before it launches there.
class Gpu {
 public:
  /// The one with CUDA's number. stream: where launches go, nullptr CUDA's own; not owned. Throws std::runtime_error
  /// with CUDA's words.
  explicit Gpu(int number, CUstream_st* stream = nullptr);

  int number() const { return number_; }
  CUstream_st* stream() const { return stream_; }
  int n_multiprocessors() const { return n_multiprocessors_; }
  /// Whether it has wgmma.
  bool is_hopper() const { return is_hopper_; }
  /// Shared memory of a thread block at most, bytes; and of each of two that one multiprocessor has.
  int shared_bytes() const { return shared_bytes_; }
  int half_shared_bytes() const;

  /// Lets a kernel's blocks have so much dynamic shared memory, or as much as there is. CUDA keeps that for each
  /// device. nullptr or why not.
  const char* allow_shared(const void* kernel, int bytes) const;

 private:
  int number_;
  CUstream_st* stream_;
  int n_multiprocessors_ = 1, shared_bytes_ = 0;
  bool is_hopper_ = false;
  mutable std::unordered_set<const void*> allowed_;  ///< kernels that may have more than all may
};

}  // namespace coppice::cuda
