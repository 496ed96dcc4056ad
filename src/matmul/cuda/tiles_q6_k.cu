#include "matmul/cuda/tile_launch.cuh"

namespace coppice::matmul::cuda {

template <>
const char* launch_tiles<QuantType::kQ6K>(const QuantProduct& p, const ProductTuning& tuning, CUstream_st* stream) {
  return launch_tiles_of<QuantType::kQ6K>(p, tuning, stream);
}

template <>
const char* launch_part_tiles<QuantType::kQ6K>(const QuantProduct& p, const PartRows& parts, CUstream_st* stream) {
  return launch_part_tiles_of<QuantType::kQ6K>(p, parts, stream);
}

}  // namespace coppice::matmul::cuda
