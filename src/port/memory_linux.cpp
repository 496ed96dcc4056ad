#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>

#include "port/control_groups.h"
#include "port/memory.h"

namespace coppice::port {

namespace {

namespace fs = std::filesystem;

/// The names of a version's files. Of a group's pages the kernel may drop those of files.
struct Names {
  const char *limit, *used, *active_file, *inactive_file;
};
constexpr Names kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
                             "total_inactive_file"};
constexpr Names kVersion2 = {"memory.max", "memory.current", "active_file", "inactive_file"};

std::optional<std::size_t> number_in(const fs::path& path) {
  std::ifstream in(path);
  std::size_t value = 0;
  if (in >> value) return value;  // "max" is none
  return std::nullopt;
}

std::size_t available(const fs::path& meminfo) {
  std::ifstream in(meminfo);
  std::string name, unit;
  std::size_t kib = 0;
  while (in >> name >> kib) {
    if (name == "MemAvailable:") return kib * 1024;
    std::getline(in, unit);
  }
  return 0;
}

std::size_t pages_of_files(const fs::path& stat, const Names& names) {
  std::ifstream in(stat);
  std::string name;
  std::size_t bytes = 0, sum = 0;
  while (in >> name >> bytes) {
    if (name == names.active_file || name == names.inactive_file) sum += bytes;
  }
  return sum;
}

/// What the group at `folder` may still take; nothing: it has no limit.
std::size_t left_in(const fs::path& folder, const Names& names) {
  const auto limit = number_in(folder / names.limit), used = number_in(folder / names.used);
  if (!limit || !used) return SIZE_MAX;
  const std::size_t held = *used - std::min(*used, pages_of_files(folder / "memory.stat", names));
  return *limit > held ? *limit - held : 0;
}

std::size_t left_in_groups(const fs::path& root) {
  std::size_t left = SIZE_MAX;
  for_each_group(root, "memory", [&left](const fs::path& folder, int version) {
    left = std::min(left, left_in(folder, version == 1 ? kVersion1 : kVersion2));
  });
  return left;
}

}  // namespace

std::size_t free_memory(const fs::path& root) {
  return std::min(available(root / "proc/meminfo"), left_in_groups(root));
}

std::size_t resident_memory() {
  std::ifstream in("/proc/self/statm");
  std::size_t all = 0, pages = 0;
  in >> all >> pages;
  return pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

/// When a large block is freed, glibc raises the size from which it maps blocks one by one, up to 32 MiB. A few large
/// request bodies are enough: later ones come from its arenas, which keep the memory for good. Fixed thresholds give it
/// back to the system. No step allocates blocks of this size.
void keep_memory_flat() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 4 << 20);
#endif
}

}  // namespace coppice::port
