#include "matmul/cuda/tile_launch.cuh"

namespace coppice::matmul::cuda {

template <>
const char* launch_tiles<QuantType::kMxfp4>(const QuantProduct& p, const ProductTuning& tuning, CUstream_st* stream) {
  return launch_tiles_of<QuantType::kMxfp4>(p, tuning, stream);
}

}  // namespace coppice::matmul::cuda
