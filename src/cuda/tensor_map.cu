#include <cuda_runtime_api.h>

#include "cuda/tensor_map.h"

namespace coppice::cuda {

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

/// The driver's function; found at run time, so that nothing needs a driver to be linked.
Encode find_encode() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
  const cudaError_t status = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<Encode>(found);
}

}  // namespace

const char* describe_rows(CUtensorMap& map, const void* numbers, int rows, int columns, int box_rows) {
  static const Encode encode = find_encode();  // the driver's, of no GPU
  if (encode == nullptr) return "the driver has no tensor maps";
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(columns) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, steps[2] = {1, 1};
  const CUresult made = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(numbers), sizes, strides,
                               box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return made == CUDA_SUCCESS ? nullptr : "the driver refuses the tensor map of a product's rows";
}

}  // namespace coppice::cuda
