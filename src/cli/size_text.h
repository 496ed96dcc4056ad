#pragma once

#include <cstddef>
#include <string>

namespace coppice::cli {

/// "92 MiB", "1.50 GiB".
std::string size_text(std::size_t bytes);

}  // namespace coppice::cli
