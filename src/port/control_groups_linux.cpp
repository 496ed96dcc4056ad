#include <fstream>
#include <string>
#include <system_error>

#include "port/control_groups.h"

namespace coppice::port {

namespace {

namespace fs = std::filesystem;

void climb(const fs::path& mount, const std::string& group, int version,
           const std::function<void(const fs::path&, int)>& visit) {
  std::error_code error;
  fs::path folder = mount / fs::path(group).relative_path();
  if (!fs::is_directory(folder, error)) folder = mount;
  visit(mount, version);
  for (; folder != mount && folder.has_relative_path() && folder != folder.parent_path(); folder = folder.parent_path())
    visit(folder, version);
}

}  // namespace

/// A line of /proc/self/cgroup is ID:CONTROLLERS:PATH. ID 0 is version 2.
void for_each_group(const fs::path& root, std::string_view controller,
                    const std::function<void(const fs::path& folder, int version)>& visit) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::error_code error;
  const fs::path unified = mounts / "unified";
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    while (path.ends_with('/')) path.pop_back();
    if (line.starts_with("0::")) {
      climb(fs::is_directory(unified, error) ? unified : mounts, path, 2, visit);
    } else if (controllers.find("," + std::string(controller) + ",") != std::string::npos) {
      climb(mounts / controller, path, 1, visit);
    }
  }
}

}  // namespace coppice::port
