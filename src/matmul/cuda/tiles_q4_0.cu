#include "matmul/cuda/tile_launch.cuh"

namespace coppice::matmul::cuda {

template <>
const char* launch_tiles<QuantType::kQ4_0>(const QuantProduct& p, const ProductTuning& tuning, const Gpu& gpu) {
  return launch_tiles_of<QuantType::kQ4_0>(p, tuning, gpu);
}

template <>
const char* launch_part_tiles<QuantType::kQ4_0>(const QuantProduct& p, const PartRows& parts, const Gpu& gpu) {
  return launch_part_tiles_of<QuantType::kQ4_0>(p, parts, gpu);
}

}  // namespace coppice::matmul::cuda
