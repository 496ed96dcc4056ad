// Which instruction set the kernels use. Highway chooses the best one that the CPU has; COPPICE_SIMD rules out better
// ones than it names. Thread safe.
#pragma once

#include <string_view>

namespace coppice::simd {

/// Reads COPPICE_SIMD and settles the choice, at the first call only. Whoever dispatches to a kernel calls it before.
void choose_target();

/// The instruction set in use: "AVX3", "AVX2", "NEON", ...
std::string_view target();

}  // namespace coppice::simd
