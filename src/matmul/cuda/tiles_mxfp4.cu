#include "matmul/cuda/tile_launch.cuh"

namespace coppice::matmul::cuda {

template <>
const char* launch_tiles<QuantType::kMxfp4>(const QuantProduct& p, const ProductTuning& tuning, CUstream_st* stream) {
  return launch_tiles_of<QuantType::kMxfp4>(p, tuning, stream);
}

template <>
const char* launch_part_tiles<QuantType::kMxfp4>(const QuantProduct& p, const PartRows& parts, CUstream_st* stream) {
  return launch_part_tiles_of<QuantType::kMxfp4>(p, parts, stream);
}

}  // namespace coppice::matmul::cuda
