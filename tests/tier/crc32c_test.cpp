// CRC-32C against published values, against a plain one bit by bit, and in parts.
#include "tier/crc32c.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "support/dice.h"

namespace coppice::tier {
namespace {

using Bytes = std::span<const std::byte>;

std::uint32_t bit_by_bit(Bytes bytes) {
  std::uint32_t crc = ~0u;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

TEST(Crc32c, PublishedValues) {
  const auto of = [](std::string_view text) { return crc32c(std::as_bytes(std::span(text))); };
  EXPECT_EQ(of("123456789"), 0xe3069283u);
  EXPECT_EQ(of(""), 0u);
  const std::vector<std::byte> zeros(32), ones(32, std::byte{0xff});  // RFC 3720, B.4
  EXPECT_EQ(crc32c(zeros), 0x8a9136aau);
  EXPECT_EQ(crc32c(ones), 0x62a8ab43u);
}

TEST(Crc32c, BothWaysGiveWhatBitsGive) {
  test::Dice dice(1);
  std::vector<std::byte> bytes(400);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(dice.below(256));
  for (int i = 0; i < 500; ++i) {
    const auto begin = static_cast<std::size_t>(dice.below(200)), size = static_cast<std::size_t>(dice.below(200));
    const Bytes part = Bytes(bytes).subspan(begin, size);
    EXPECT_EQ(crc32c(part), bit_by_bit(part));
    EXPECT_EQ(crc32c_by_tables(part), bit_by_bit(part));
    const auto cut = static_cast<std::size_t>(dice.below(static_cast<std::int64_t>(size) + 1));
    EXPECT_EQ(crc32c(part.subspan(cut), crc32c(part.first(cut))), bit_by_bit(part));
  }
}

}  // namespace
}  // namespace coppice::tier
