#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "cuda/gpu.h"

namespace coppice::cuda {

Gpu::Gpu(int number, CUstream_st* stream) : number_(number), stream_(stream) {
  const auto ask = [&](cudaDeviceAttr what) {
    int value = 0;
    if (const cudaError_t status = cudaDeviceGetAttribute(&value, what, number); status != cudaSuccess)
      throw std::runtime_error("GPU " + std::to_string(number) + ": " + cudaGetErrorString(status));
    return value;
  };
  n_multiprocessors_ = ask(cudaDevAttrMultiProcessorCount);
  shared_bytes_ = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  is_hopper_ = ask(cudaDevAttrComputeCapabilityMajor) == 9;
}

int Gpu::half_shared_bytes() const {
  constexpr int kReserved = 1024;  // of a thread block, by the driver
  return (shared_bytes_ + kReserved) / 2 - kReserved;
}

const char* Gpu::allow_shared(const void* kernel, int bytes) const {
  constexpr int kAllowedToAll = 48 << 10;
  if (bytes <= kAllowedToAll || allowed_.contains(kernel)) return nullptr;
  // All that the kernel's own variables leave: others who launch it on this GPU must not take it back.
  cudaFuncAttributes has{};
  cudaError_t status = cudaFuncGetAttributes(&has, kernel);
  if (status == cudaSuccess) {
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shared_bytes_ - static_cast<int>(has.sharedSizeBytes));
  }
  if (status != cudaSuccess) return cudaGetErrorString(status);
  allowed_.insert(kernel);
  return nullptr;
}

}  // namespace coppice::cuda
