#include "cli/size_text.h"

#include <fmt/format.h>

namespace coppice::cli {

std::string size_text(std::size_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

}  // namespace coppice::cli
