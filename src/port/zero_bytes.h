// what() of an exception is a C string, and so ends at a zero byte.
#pragma once

#include <string>

namespace coppice::port {

/// The text with "\u0000" for each zero byte.
inline std::string without_zeros(std::string text) {
  for (std::size_t at = 0; (at = text.find('\0', at)) != text.npos;) text.replace(at, 1, "\\u0000");
  return text;
}

}  // namespace coppice::port
