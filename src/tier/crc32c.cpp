#include "tier/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace coppice::tier {

namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

// tables[k][byte]: what a byte, k bytes before the end of a word, adds to the checksum.
constexpr std::array<std::array<std::uint32_t, 256>, kWord> make_tables() {
  constexpr std::uint32_t kPolynomial = 0x82f63b78;  // its bits in reverse
  std::array<std::array<std::uint32_t, 256>, kWord> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < kWord; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = crc >> 8 ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

std::uint64_t word_at(const std::byte* at) {
  std::uint64_t word = 0;
  std::memcpy(&word, at, kWord);
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint64_t crc = ~before;
  const std::byte *at = bytes.data(), *const end = at + bytes.size();
  for (; end - at >= std::ptrdiff_t{kWord}; at += kWord) crc = _mm_crc32_u64(crc, word_at(at));
  auto last = static_cast<std::uint32_t>(crc);
  for (; at != end; ++at) last = _mm_crc32_u8(last, std::to_integer<std::uint8_t>(*at));
  return ~last;
}
bool has_instruction() {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has;
}
#elif defined(__aarch64__) && defined(__ARM_FEATURE_CRC32)
std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  const std::byte *at = bytes.data(), *const end = at + bytes.size();
  for (; end - at >= std::ptrdiff_t{kWord}; at += kWord) crc = __crc32cd(crc, word_at(at));
  for (; at != end; ++at) crc = __crc32cb(crc, std::to_integer<std::uint8_t>(*at));
  return ~crc;
}
constexpr bool has_instruction() {
  return true;
}
#else
std::uint32_t by_instruction(std::span<const std::byte> bytes, std::uint32_t before) {
  return crc32c_by_tables(bytes, before);
}
constexpr bool has_instruction() {
  return false;
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  return has_instruction() ? by_instruction(bytes, before) : crc32c_by_tables(bytes, before);
}

std::uint32_t crc32c_by_tables(std::span<const std::byte> bytes, std::uint32_t before) {
  static constexpr auto kTables = make_tables();
  std::uint32_t crc = ~before;
  const std::byte *at = bytes.data(), *const end = at + bytes.size();
  for (; end - at >= std::ptrdiff_t{kWord}; at += kWord) {
    const std::uint64_t word = word_at(at) ^ crc;  // little-endian
    crc = 0;
    for (std::size_t k = 0; k < kWord; ++k) crc ^= kTables[kWord - 1 - k][word >> 8 * k & 0xff];
  }
  for (; at != end; ++at) crc = crc >> 8 ^ kTables[0][(crc ^ std::to_integer<std::uint32_t>(*at)) & 0xff];
  return ~crc;
}

}  // namespace coppice::tier
