#include "log/one_line.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace coppice::log {

namespace {

struct Decoded {
  std::uint32_t point;
  std::size_t bytes;  ///< 0: no UTF-8
};

Decoded decode(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1};
  const std::size_t bytes = first >= 0xc2 && first < 0xe0 ? 2 : first >= 0xe0 && first < 0xf0 ? 3 : 4;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return {first, 0};
  std::uint32_t point = first & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {first, 0};
    point = point << 6 | (byte(i) & 0x3fU);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = point >= 0xd800 && point < 0xe000;
  if (point < kLeast[bytes] || point > 0x10ffff || surrogate) return {first, 0};
  return {point, bytes};
}

bool is_plain(std::uint32_t point) {
  const auto within = [point](std::uint32_t low, std::uint32_t high) { return point >= low && point <= high; };
  const bool control = point < 0x20 || within(0x7f, 0x9f);
  const bool separator = within(0x2028, 0x2029);
  const bool direction = point == 0x61c || within(0x200e, 0x200f) || within(0x202a, 0x202e) || within(0x2066, 0x2069);
  const bool unseen = point == 0xad || point == 0x180e || within(0x200b, 0x200d) || within(0x2060, 0x206f) ||
                      point == 0xfeff || within(0xfff9, 0xfffb) || within(0xe0000, 0xe007f);
  return !control && !separator && !direction && !unseen;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  while (!text.empty()) {
    const auto [point, bytes] = decode(text);
    if (bytes > 0 && is_plain(point)) {
      line.append(text.substr(0, bytes));
    } else if (point == '\n') {
      line += "\\n";
    } else if (bytes > 1) {
      fmt::format_to(std::back_inserter(line), "\\u{{{:x}}}", point);
    } else {
      fmt::format_to(std::back_inserter(line), "\\x{:02x}", point);
    }
    text.remove_prefix(bytes > 0 ? bytes : 1);
  }
  return line;
}

}  // namespace coppice::log
