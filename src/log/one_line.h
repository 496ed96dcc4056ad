#pragma once

#include <string>
#include <string_view>

namespace coppice::log {

/// `text` as one line that a terminal shows as it is written: control characters, line separators, marks that turn the
/// direction of writing or that nobody sees, and bytes that are no UTF-8 become \n, \x1b or \u{202e}. What comes from
/// clients and files may hold them.
std::string one_line(std::string_view text);

}  // namespace coppice::log
