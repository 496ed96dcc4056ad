#include <fcntl.h>
#include <sys/mount.h>
#include <sys/param.h>
#include <sys/stat.h>
#include <unistd.h>

#include "port/files.h"

namespace coppice::port {

std::int64_t changed_ns(const struct stat& found) {
  return std::int64_t{found.st_mtimespec.tv_sec} * 1'000'000'000 + found.st_mtimespec.tv_nsec;
}

int direct_flag() {
  return 0;
}

/// fsync() leaves the bytes in the drive's own cache. File systems that can't empty that have no better.
int sync_data(int file) {
  return ::fcntl(file, F_FULLFSYNC) == 0 ? 0 : ::fsync(file);
}

std::string disk_of(const std::filesystem::path& folder) {
  struct statfs found;
  if (::statfs(folder.c_str(), &found) != 0) return "a disk that the system doesn't name";
  return std::string(found.f_fstypename) + " on " + found.f_mntfromname;
}

}  // namespace coppice::port
