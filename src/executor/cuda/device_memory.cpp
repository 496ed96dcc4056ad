#include "executor/cuda/device_memory.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "model/load_error.h"

namespace coppice::executor::cuda {

void check(int status, const char* what) {
  if (status == cudaSuccess) return;
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told, and would be found by the next call again
    throw model::LoadError(fmt::format("too little memory on the GPU's side for: {}", what));
  }
  throw std::runtime_error(
      fmt::format("the GPU failed: {}: {}", what, cudaGetErrorString(static_cast<cudaError_t>(status))));
}

std::size_t free_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory");
  return free;
}

std::size_t total_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "memory");
  return total;
}

DeviceMemory::DeviceMemory(std::size_t bytes, const char* what) {
  void* memory = nullptr;
  const cudaError_t status = cudaMalloc(&memory, std::max<std::size_t>(bytes, 16));
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // it is told, and would be found by the next call again
    throw model::LoadError(fmt::format("too little GPU memory for {}: {:.1f} MiB are wanted, {:.1f} MiB are free", what,
                                       static_cast<double>(bytes) / kMiB, static_cast<double>(free_bytes()) / kMiB));
  }
  check(status, what);
  memory_.reset(static_cast<std::byte*>(memory));
  check(cudaMemset(memory, 0, std::max<std::size_t>(bytes, 16)), what);
  // CUDA clears it in its own stream, which the steps' don't wait for: what they wrote meanwhile would be lost.
  check(cudaStreamSynchronize(nullptr), what);
}

DeviceMemory::DeviceMemory(const void* from, std::size_t bytes, const char* what) : DeviceMemory(bytes, what) {
  check(cudaMemcpy(memory_.get(), from, bytes, cudaMemcpyHostToDevice), what);
}

void DeviceMemory::Free::operator()(std::byte* memory) const {
  cudaFree(memory);
}

PinnedMemory::PinnedMemory(std::size_t bytes) : size_(bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, std::max<std::size_t>(bytes, 16)), "host memory for copies");
  memory_.reset(static_cast<std::byte*>(memory));
}

void PinnedMemory::Free::operator()(std::byte* memory) const {
  cudaFreeHost(memory);
}

}  // namespace coppice::executor::cuda
