// Which instruction set the kernels use. Highway chooses the best one that the CPU has; COPPICE_SIMD rules out better
// ones than it names. Thread safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace coppice::simd {

/// Reads COPPICE_SIMD and settles the choice, at the first call only. Whoever dispatches to a kernel calls it before.
void choose_target();

/// The best instruction set in use, by whichever kernel: "AVX3_DL", "AVX2", "NEON", ... COPPICE_SIMD with this name
/// changes nothing.
std::string_view target();

/// What COPPICE_SIMD says, if the CPU has no instruction set of that name, so that none is ruled out. Empty: all is well.
std::string_view unheeded();

/// Highway's bits of the instruction sets that this CPU has and that are better than the one named; none if it has not
/// the one named.
std::optional<std::int64_t> better_than(std::string_view name);

}  // namespace coppice::simd
