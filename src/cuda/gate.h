// The gates of gated linear units. Knows no CUDA.
#pragma once

#include <cstdint>

namespace coppice::cuda {

/// kGelu: its approximation by tanh. kClamped: z / (1 + exp(-1.702 z)) of z = min(from_gate, 7), times 1 + from_up,
/// clamped to 7 (gpt-oss).
enum class Gate : std::uint8_t { kSilu, kGelu, kClamped };

}  // namespace coppice::cuda
