// Which instruction set the kernels use: the best one that the CPU has, of those that Highway dispatches to and of AMX,
// which it doesn't know. COPPICE_SIMD rules out better ones than it names. Thread safe.
#pragma once

#include <string_view>
#include <vector>

namespace coppice::simd {

/// Reads COPPICE_SIMD and settles the choice, at the first call only. Whoever dispatches to a kernel calls it before.
void choose_target();

/// The best instruction set in use, by whichever kernel: "AMX", "AVX3_DL", "AVX2", "NEON", ... COPPICE_SIMD with this name
/// changes nothing.
std::string_view target();

/// Whether tiles of bf16 may be multiplied (AMX-BF16), beside all of AVX3_DL.
bool amx();

/// What COPPICE_SIMD says, and the names of targets(), if it is none of them in capitals or not, so that none is ruled out.
/// Empty: all is well.
std::string_view unheeded();

/// The instruction sets that this CPU has and kernels are compiled for, best first.
const std::vector<std::string_view>& targets();

/// Rules out better ones than this, as COPPICE_SIMD does; rules none out and returns false if it is none of targets(). For
/// tests, while no kernel runs.
bool use(std::string_view name);

}  // namespace coppice::simd
