#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "port/files.h"

namespace coppice::port {

std::int64_t changed_ns(const struct stat& found) {
  return std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
}

int direct_flag() {
  return O_DIRECT;
}

int sync_data(int file) {
  return ::fdatasync(file);
}

/// The last mount above the folder counts.
std::string disk_of(const std::filesystem::path& folder) {
  std::ifstream mounts("/proc/self/mounts");
  std::string best, found = "a disk that the system doesn't name";
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string device, place, kind;
    words >> device >> place >> kind;
    const std::filesystem::path mount = place;
    const bool is_above = std::ranges::mismatch(mount, folder).in1 == mount.end();
    if (!is_above || place.size() < best.size()) continue;
    best = place;
    found = kind + " on " + device;
  }
  return found;
}

}  // namespace coppice::port
