// Which steps' kernels are launched before the ones in front of them have ended (launch.cuh).
#pragma once

namespace coppice::cuda {

/// Those of so many rows. With more, thread blocks that come while others are still there crowd on some multiprocessors: a step of 64 rows
/// took up to 15 % longer (docs/adr/0032).
inline constexpr int kMostEarlyRows = 8;

}  // namespace coppice::cuda
