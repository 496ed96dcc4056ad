#include "pull/replace.h"

#include <fmt/format.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <random>
#include <system_error>

namespace coppice::pull {

namespace fs = std::filesystem;

namespace {

/// `make` makes it by another name beside it: one of its own, as containers that share a folder share process ids.
void replace(const fs::path& path, const std::function<std::error_code(const fs::path& aside)>& make) {
  fs::create_directories(path.parent_path());
  std::random_device random;
  const fs::path aside = path.parent_path() / fmt::format(".coppice-{:08x}{:08x}", random(), random());
  std::error_code error = make(aside);
  if (!error) fs::rename(aside, path, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(aside, ignored);
  throw fs::filesystem_error("not replaced", path, error);
}

}  // namespace

void replace_file(const fs::path& path, const std::string& text) {
  replace(path, [&](const fs::path& aside) {
    errno = 0;
    std::ofstream out(aside, std::ios::binary);
    out << text;
    out.close();
    return out ? std::error_code() : std::error_code(errno != 0 ? errno : EIO, std::generic_category());
  });
}

void replace_link(const fs::path& path, const fs::path& target) {
  replace(path, [&](const fs::path& aside) {
    std::error_code error;
    fs::create_symlink(target, aside, error);
    return error;
  });
}

}  // namespace coppice::pull
