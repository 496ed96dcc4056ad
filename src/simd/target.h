// Which instruction set the kernels use: the best one that the CPU has, of those that Highway dispatches to and of
// those that it doesn't know: AMX, and NEON's products of bytes. COPPICE_SIMD rules out better ones than it names.
// Thread safe.
//
// How a kernel is written: its file is compiled for each instruction set (Highway's foreach_target, simd/kernel-inl.h)
// and calls HWY_EXPORT once; COPPICE_SIMD_CALL is the only way to call it. Where AMX pays, the version for AVX3_DL asks
// amx().
#pragma once

#include <string_view>
#include <vector>

#include "simd/neon.h"

namespace coppice::simd {

/// Reads COPPICE_SIMD and settles the choice, at the first call only.
void choose_target();

/// The version for the instruction set in use of a function that was named to HWY_EXPORT.
#define COPPICE_SIMD_CALL(function) (::coppice::simd::choose_target(), HWY_DYNAMIC_DISPATCH(function))

/// The best instruction set in use, by whichever kernel: "AMX", "AVX3_DL", "AVX2", "NEON_I8MM", "NEON", ...
/// COPPICE_SIMD with this name changes nothing.
std::string_view target();

/// Whether tiles of bf16 may be multiplied (AMX-BF16), beside all of AVX3_DL.
bool amx();

/// Which products of bytes may be used, beside all of NEON ("NEON_DOTPROD", "NEON_I8MM").
NeonBytes neon_bytes();

/// What COPPICE_SIMD says, and the names of targets(), if it is none of them in capitals or not, so that none is ruled
/// out. Empty: all is well.
std::string_view unheeded();

/// The instruction sets that this CPU has and kernels are compiled for, best first.
const std::vector<std::string_view>& targets();

/// Rules out better ones than this, as COPPICE_SIMD does; rules none out and returns false if it is none of targets().
/// For tests, while no kernel runs.
bool use(std::string_view name);

}  // namespace coppice::simd
