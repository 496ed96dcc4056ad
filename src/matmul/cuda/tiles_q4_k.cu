#include "matmul/cuda/tile_launch.cuh"

namespace coppice::matmul::cuda {

template <>
const char* launch_tiles<QuantType::kQ4K>(const QuantProduct& p, const ProductTuning& tuning, CUstream_st* stream) {
  return launch_tiles_of<QuantType::kQ4K>(p, tuning, stream);
}

template <>
const char* launch_part_tiles<QuantType::kQ4K>(const QuantProduct& p, const PartRows& parts, CUstream_st* stream) {
  return launch_part_tiles_of<QuantType::kQ4K>(p, parts, stream);
}

}  // namespace coppice::matmul::cuda
