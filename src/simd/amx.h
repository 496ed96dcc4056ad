// Intel's matrix extension: eight tile registers of up to 16 rows of 64 bytes, and products of them.
#pragma once

#include <cstdint>

namespace coppice::simd {

/// Whether this CPU multiplies tiles of bf16 and rounds vectors to it, and the system lets this process do so: all of
/// its threads, then. Linux wants to be asked, since a thread's state grows by 8 KiB. Where they are emulated: yes.
bool request_amx();

/// The shapes of a thread's tiles, as the processor has them. Palette 0: none has one.
struct TileShapes {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(TileShapes) == 64);

}  // namespace coppice::simd
