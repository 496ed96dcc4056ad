#include <algorithm>

#include "cuda/launch.cuh"
#include "matmul/cuda/few_rows.cuh"
#include "matmul/cuda/part_product.h"
#include "matmul/cuda/tile_types.h"

namespace coppice::matmul::cuda {

namespace {

constexpr int kRowTile = 8, kFewRows = 2 * kRowTile, kTiles = 2;

/// A panel for each blockIdx.y.
template <QuantType kType, int kRowTiles>
__global__ __launch_bounds__(32 * kMostWarps) void multiply_panels(const QuantProduct all, const PartRows parts) {
  extern __shared__ __align__(16) unsigned char memory[];
  allow_next_launch();
  wait_for_launch_before();
  const int at = static_cast<int>(blockIdx.y);
  if (at >= *parts.n_panels) return;
  const RowPanel panel = parts.panels[at];
  QuantProduct p = all;
  p.n_rows = panel.n;
  p.weights += panel.part * parts.part_bytes;
  p.x =
      static_cast<const std::byte*>(p.x) + static_cast<std::size_t>(panel.first) * static_cast<std::size_t>(p.n_in) * 2;
  p.y += static_cast<std::size_t>(panel.first) * static_cast<std::size_t>(p.n_out);
  multiply_few<kType, kTiles, kRowTiles, false>(p, memory);
}

template <QuantType kType, int kRowTiles>
const char* launch_few(const QuantProduct& p, const PartRows& parts, const Gpu& gpu) {
  const int of_warp = few_rows_bytes<kType, kTiles, kRowTiles>(parts.panel_rows);
  const int n_blocks = ((p.n_out + kTileOutputs - 1) / kTileOutputs + kTiles - 1) / kTiles;
  const int n_panels = most_panels(p.n_rows, parts.n_parts, parts.panel_rows);
  const int n_warps = choose_warps(gpu, n_blocks * std::min(n_panels, parts.n_parts),
                                   (p.n_in + kStageInputs - 1) / kStageInputs, of_warp);
  const LaunchShape shape = {.n_blocks = n_blocks,
                             .n_threads = 32 * n_warps,
                             .shared_bytes = n_warps * of_warp,
                             .n_blocks_y = n_panels,
                             .early = parts.panel_rows <= coppice::cuda::kMostCrowdingRows};
  return launch_early(multiply_panels<kType, kRowTiles>, shape, gpu, p, parts);
}

template <QuantType kType>
const char* launch(const QuantProduct& p, const PartRows& parts, const Gpu& gpu) {
  if (parts.panel_rows <= kRowTile) return launch_few<kType, 1>(p, parts, gpu);
  if (parts.panel_rows <= kFewRows) return launch_few<kType, 2>(p, parts, gpu);
  return launch_part_tiles<kType>(p, parts, gpu);
}

}  // namespace

int panel_rows(const Gpu& gpu, int n_rows, int n_parts, int most) {
  const int mean = (n_rows + n_parts - 1) / n_parts;
  // Of eight rows where few parts have more: rows that aren't there cost as much as others.
  if (mean <= kRowTile / 2 + 1) return std::min(kRowTile, most);
  if (!gpu.is_hopper() || mean <= kFewRows) return std::min(kFewRows, most);
  return mean <= 64 ? 64 : 128;
}

const char* launch_part_product(const QuantProduct& p, const PartRows& parts, const Gpu& gpu) {
  if (p.n_rows < 1) return "no product of so few rows";
  switch (p.type) {
    case QuantType::kQ4_0:
      return launch<QuantType::kQ4_0>(p, parts, gpu);
    case QuantType::kQ8_0:
      return launch<QuantType::kQ8_0>(p, parts, gpu);
    case QuantType::kQ4K:
      return launch<QuantType::kQ4K>(p, parts, gpu);
    case QuantType::kQ5K:
      return launch<QuantType::kQ5K>(p, parts, gpu);
    case QuantType::kQ6K:
      return launch<QuantType::kQ6K>(p, parts, gpu);
    case QuantType::kMxfp4:
      return launch<QuantType::kMxfp4>(p, parts, gpu);
    case QuantType::kBf16:
      return launch<QuantType::kBf16>(p, parts, gpu);
    default:
      return "no product for weights of this type";
  }
}

}  // namespace coppice::matmul::cuda
