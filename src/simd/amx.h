// Intel's matrix extension: eight tile registers of up to 16 rows of 64 bytes, and products of them.
#pragma once

namespace coppice::simd {

/// Whether this CPU multiplies tiles of bf16 and rounds vectors to it, and the system lets this process do so: all of its
/// threads, then. Linux wants to be asked, since a thread's state grows by 8 KiB.
bool request_amx();

}  // namespace coppice::simd
