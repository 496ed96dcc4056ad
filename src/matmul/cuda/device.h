// What the launches of products know of the GPU.
#pragma once

#include <cuda_runtime_api.h>

namespace coppice::matmul::cuda {

struct Device {
  int n_multiprocessors = 1, shared_bytes = 0;  ///< shared: of a thread block at most
  bool is_hopper = false;

  /// Shared memory of each of two thread blocks that one multiprocessor has.
  int half() const {
    constexpr int kReserved = 1024;  // of a thread block, by the driver
    return (shared_bytes + kReserved) / 2 - kReserved;
  }
};

/// The one that is current first: a process uses one.
inline const Device& device() {
  static const Device found = [] {
    Device d;
    int number = 0, major = 0;
    cudaGetDevice(&number);
    cudaDeviceGetAttribute(&d.n_multiprocessors, cudaDevAttrMultiProcessorCount, number);
    cudaDeviceGetAttribute(&d.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, number);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, number);
    d.is_hopper = major == 9;
    return d;
  }();
  return found;
}

}  // namespace coppice::matmul::cuda
