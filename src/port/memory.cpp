#include "port/memory.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

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

/// Over the group and its parents up to `mount`. In a container `group` may be its path on the host: then the mount is the group itself.
std::size_t left_above(const fs::path& mount, const std::string& group, const Names& names) {
  std::error_code error;
  fs::path folder = mount / fs::path(group).relative_path();
  if (!fs::is_directory(folder, error)) folder = mount;
  std::size_t left = left_in(mount, names);
  for (; folder != mount && folder.has_relative_path() && folder != folder.parent_path(); folder = folder.parent_path())
    left = std::min(left, left_in(folder, names));
  return left;
}

/// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH. ID 0 is version 2.
std::size_t left_in_groups(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::error_code error;
  const fs::path unified = mounts / "unified";
  std::size_t left = SIZE_MAX;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    while (path.ends_with('/')) path.pop_back();
    if (line.starts_with("0::")) {
      left = std::min(left, left_above(fs::is_directory(unified, error) ? unified : mounts, path, kVersion2));
    } else if (controllers.find(",memory,") != std::string::npos) {
      left = std::min(left, left_above(mounts / "memory", path, kVersion1));
    }
  }
  return left;
}

}  // namespace

std::size_t free_memory(const fs::path& root) {
  return std::min(available(root / "proc/meminfo"), left_in_groups(root));
}

}  // namespace coppice::port
