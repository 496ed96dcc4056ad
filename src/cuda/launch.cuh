// Launches that begin while the one in front of them in the stream ends (programmatic dependent launch).
#pragma once

#include <cuda_runtime.h>

#include "cuda/early_rows.h"
#include "cuda/gpu.h"

namespace coppice::cuda {

/// Lets the next launch of the stream begin as soon as there is room.
__device__ inline void allow_next_launch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Until the launch before is through and what it wrote can be seen.
__device__ inline void wait_for_launch_before() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

struct LaunchShape {
  int n_blocks = 1, n_threads = 1;
  int shared_bytes = 0;
  int n_blocks_y = 1;
  bool early = true;
};

/// nullptr or why not. A kernel that may begin early calls wait_for_launch_before() before it reads what others write.
template <class... Parameters, class... Arguments>
const char* launch_early(void (*kernel)(Parameters...), const LaunchShape& shape, const Gpu& gpu,
                         const Arguments&... arguments) {
  if (const char* error = gpu.allow_shared(reinterpret_cast<const void*>(kernel), shape.shared_bytes)) return error;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = shape.early ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.n_blocks), static_cast<unsigned>(shape.n_blocks_y));
  config.blockDim = static_cast<unsigned>(shape.n_threads);
  config.dynamicSmemBytes = static_cast<std::size_t>(shape.shared_bytes);
  config.stream = gpu.stream();
  config.attrs = &early;
  config.numAttrs = 1;
  const cudaError_t launched = cudaLaunchKernelEx(&config, kernel, arguments...);
  return launched == cudaSuccess ? nullptr : cudaGetErrorString(launched);
}

}  // namespace coppice::cuda
