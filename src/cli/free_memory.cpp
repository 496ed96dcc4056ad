#include "cli/free_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <string_view>

namespace coppice::cli {

namespace {

std::optional<std::size_t> number_in(const char* path) {
  std::ifstream in(path);
  std::size_t value = 0;
  if (in >> value) return value;  // "max" is none
  return std::nullopt;
}

std::size_t kernel_estimate() {
  std::ifstream in("/proc/meminfo");
  std::string name, unit;
  std::size_t kib = 0;
  while (in >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    std::getline(in, unit);
  }
  return 0;
}

}  // namespace

std::size_t free_memory() {
  std::size_t bytes = kernel_estimate();
  const auto limit = number_in("/sys/fs/cgroup/memory.max");
  const auto current = number_in("/sys/fs/cgroup/memory.current");
  if (limit && current) bytes = std::min(bytes, *limit > *current ? *limit - *current : 0);
  return bytes;
}

std::string size_text(std::size_t bytes) {
  constexpr double kMiB = 1024.0 * 1024.0;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fmt::format("{:.0f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024);
}

}  // namespace coppice::cli
