#include "events/msgpack_writer.h"

#include <bit>
#include <limits>

namespace coppice::events {

void MsgpackWriter::with_tail(std::uint8_t first, std::uint64_t value, int bytes) {
  byte(first);
  for (int i = bytes - 1; i >= 0; --i) byte(static_cast<std::uint8_t>(value >> (8 * i)));
}

void MsgpackWriter::number(std::uint64_t value) {
  if (value < 0x80) {
    byte(static_cast<std::uint8_t>(value));
  } else if (value <= std::numeric_limits<std::uint8_t>::max()) {
    with_tail(0xcc, value, 1);
  } else if (value <= std::numeric_limits<std::uint16_t>::max()) {
    with_tail(0xcd, value, 2);
  } else if (value <= std::numeric_limits<std::uint32_t>::max()) {
    with_tail(0xce, value, 4);
  } else {
    with_tail(0xcf, value, 8);
  }
}

void MsgpackWriter::signed_number(std::int64_t value) {
  if (value >= 0) return number(static_cast<std::uint64_t>(value));
  const auto bits = static_cast<std::uint64_t>(value);
  if (value >= -32) {
    byte(static_cast<std::uint8_t>(bits));
  } else if (value >= std::numeric_limits<std::int8_t>::min()) {
    with_tail(0xd0, bits, 1);
  } else if (value >= std::numeric_limits<std::int16_t>::min()) {
    with_tail(0xd1, bits, 2);
  } else if (value >= std::numeric_limits<std::int32_t>::min()) {
    with_tail(0xd2, bits, 4);
  } else {
    with_tail(0xd3, bits, 8);
  }
}

void MsgpackWriter::real(double value) {
  with_tail(0xcb, std::bit_cast<std::uint64_t>(value), 8);
}

void MsgpackWriter::length(std::size_t n, std::uint8_t of_16_bits) {
  const bool is_short = n <= std::numeric_limits<std::uint16_t>::max();
  with_tail(static_cast<std::uint8_t>(of_16_bits + (is_short ? 0 : 1)), n, is_short ? 2 : 4);
}

void MsgpackWriter::text(std::string_view value) {
  if (value.size() < 32) {
    byte(static_cast<std::uint8_t>(0xa0 + value.size()));
  } else if (value.size() <= std::numeric_limits<std::uint8_t>::max()) {
    with_tail(0xd9, value.size(), 1);
  } else {
    length(value.size(), 0xda);
  }
  bytes_ += value;
}

void MsgpackWriter::array(std::size_t n) {
  if (n < 16) return byte(static_cast<std::uint8_t>(0x90 + n));
  length(n, 0xdc);
}

void MsgpackWriter::map(std::size_t n) {
  if (n < 16) return byte(static_cast<std::uint8_t>(0x80 + n));
  length(n, 0xde);
}

}  // namespace coppice::events
