// CRC-32C (Castagnoli), by the processor's own instruction where it has one: some 8 GB/s, else 1 to 2. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace coppice::tier {

/// Of `bytes` behind those whose checksum is `before`; 0: nothing is before.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

/// The same without that instruction: for processors that lack it, and for tests.
std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace coppice::tier
