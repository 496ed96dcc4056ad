#include "tier/disk/piece_path.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>

namespace coppice::tier {

namespace {

template <std::size_t n>
bool read_hex(std::string_view digits, std::array<std::uint8_t, n>& into) {
  const auto value = [](char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
  };
  if (digits.size() != 2 * n) return false;
  for (std::size_t i = 0; i < n; ++i) {
    const int high = value(digits[2 * i]), low = value(digits[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    into[i] = static_cast<std::uint8_t>(16 * high + low);
  }
  return true;
}

}  // namespace

std::string subfolder(int i) {
  return fmt::format("kv/{:x}", i);
}

int subfolder_of(const Name& name) {
  return name.piece[0] >> 4;
}

std::string path_of(const Name& name) {
  return subfolder(subfolder_of(name)) + "/" + to_string(name);
}

std::optional<Name> name_in(std::string_view file_name) {
  Name name;
  const std::size_t space = 2 * name.model.size() + 1, piece = space + 2 * name.space.size() + 1;
  if (file_name.size() != piece + 2 * name.piece.size() || file_name[space - 1] != '-' || file_name[piece - 1] != '-')
    return std::nullopt;
  const bool reads = read_hex(file_name.substr(0, space - 1), name.model) &&
                     read_hex(file_name.substr(space, piece - 1 - space), name.space) &&
                     read_hex(file_name.substr(piece), name.piece);
  return reads ? std::optional(name) : std::nullopt;
}

}  // namespace coppice::tier
