#include "matmul/cuda/tile_launch.cuh"

namespace coppice::matmul::cuda {

template <>
const char* launch_tiles<QuantType::kBf16>(const QuantProduct& p, const ProductTuning& tuning, CUstream_st* stream) {
  return launch_tiles_of<QuantType::kBf16>(p, tuning, stream);
}

}  // namespace coppice::matmul::cuda
