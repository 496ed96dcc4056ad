// Which steps' kernels are launched before the ones in front of them have ended (launch.cuh).
#pragma once

namespace coppice::cuda {

/// Those of so many rows. A prompt gains nothing.
inline constexpr int kMostEarlyRows = 64;
/// Those of so many rows, of kernels whose thread blocks don't keep apart: when they come while others are still there,
/// they crowd on some multiprocessors, and a step of 64 rows took up to 15 % longer (docs/decisions.md, "Early
/// launches"). Attention's fill a multiprocessor each.
inline constexpr int kMostCrowdingRows = 8;

}  // namespace coppice::cuda
