#include "tier/name.h"

#include <span>
#include <string_view>

namespace coppice::tier {

std::string to_string(const Name& name) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  const auto add = [&](std::span<const std::uint8_t> bytes) {
    if (!text.empty()) text += '-';
    for (const std::uint8_t byte : bytes) {
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  };
  add(name.model);
  add(name.space);
  add(name.piece);
  return text;
}

}  // namespace coppice::tier
