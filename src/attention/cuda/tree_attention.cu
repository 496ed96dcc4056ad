#include "attention/cuda/compute.cuh"
#include "attention/cuda/fetch.cuh"
#include "attention/cuda/launch.h"
#include "attention/cuda/merge.cuh"
#include "attention/cuda/tree_attention.h"
#include "cuda/launch.cuh"

namespace coppice::attention::cuda {

namespace {

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define COPPICE_HAS_KERNEL 1
#else
#define COPPICE_HAS_KERNEL 0
#endif

template <class T, int D>
__global__ __launch_bounds__(kThreads, 1) void attend_tree(const TreeAttention a) {
#if COPPICE_HAS_KERNEL
  extern __shared__ __align__(1024) unsigned char memory[];
  const Shared<T, D> shared{memory};
  const int warp = static_cast<int>(uniform(threadIdx.x / 32)), lane = static_cast<int>(threadIdx.x) % 32;
  Fetcher<T, D> fetcher{a, shared, lane};
  if (threadIdx.x == 0) shared.init();
  if (warp == kComputeWarps) fetcher.look_ahead();
  __syncthreads();
  allow_next_launch();
  if (warp >= kComputeWarps) {
    shrink_registers<kFetchRegisters>();
    if (warp == kComputeWarps) fetcher.run();
  } else {
    grow_registers<kComputeRegisters>();
    wait_for_launch_before();
    Computer<T, D>{a, shared, warp / 4, warp % 4, lane}.run();
    merge_rows<T, D>(a, warp, lane);
  }
#endif
}

template <class T, int D>
const char* launch(const TreeAttention& args, int n_workers, cudaStream_t stream) {
  static const cudaError_t ready =
      cudaFuncSetAttribute(attend_tree<T, D>, cudaFuncAttributeMaxDynamicSharedMemorySize, Tile<T, D>::kSharedBytes);
  if (ready != cudaSuccess) return cudaGetErrorString(ready);
  const LaunchShape shape = {
      .n_blocks = n_workers, .n_threads = kThreads, .shared_bytes = Tile<T, D>::kSharedBytes, .early = args.early};
  return launch_early(attend_tree<T, D>, shape, stream, args);
}

template <class T>
const char* launch(const TreeAttention& args, int n_workers, cudaStream_t stream) {
  switch (args.head_dim) {
    case 64:
      return launch<T, 64>(args, n_workers, stream);
    case 80:
      return launch<T, 80>(args, n_workers, stream);
    case 96:
      return launch<T, 96>(args, n_workers, stream);
    case 128:
      return launch<T, 128>(args, n_workers, stream);
    case 256:
      return launch<T, 256>(args, n_workers, stream);
    default:
      return "no tree attention for heads of this size";
  }
}

/// Of the device that is current first: a process uses one.
bool has_wgmma() {
  static const bool has = [] {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9;
  }();
  return has;
}

}  // namespace

bool takes_plain_kernel(bool bytes) {
  return bytes || !has_wgmma();
}

const char* launch_tree_attention(const TreeAttention& args, int n_workers, CUstream_st* stream) {
  if (args.plain || takes_plain_kernel(args.bytes)) return launch_with_mma(args, n_workers, stream);
  if (args.number == Number::kBf16) return launch<__nv_bfloat16>(args, n_workers, stream);
  return launch<__half>(args, n_workers, stream);
}

}  // namespace coppice::attention::cuda
