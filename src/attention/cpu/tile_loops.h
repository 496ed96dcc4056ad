// The inner loops over a tile, chosen by the number of its queries (tile_kernel.cpp). Two are compiled for all instruction
// sets, one needs AMX. All leave the tile's partial states and return the bytes of keys and values loaded.
#pragma once

#include "attention/cpu/tile_kernel.h"

namespace coppice::attention {

/// Vectors along a head's values.
std::uint64_t attend_few(const TileInput& tile, TileScratch& scratch);

/// Vectors across queries.
std::uint64_t attend_many(const TileInput& tile, TileScratch& scratch);

/// The same with AMX. REQUIRES: simd::amx().
std::uint64_t attend_amx(const TileInput& tile, AmxScratch& scratch);

}  // namespace coppice::attention
