#include "cli/private_file.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace coppice::cli {

std::string read_private(const std::filesystem::path& file, const std::string& what) {
  namespace fs = std::filesystem;
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error(fmt::format("{}, '{}', {}", what, file.string(), why));
  };
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (error) fail(fmt::format("can't be read: {}.", error.message()));
  if (status.type() != fs::file_type::regular) fail("is no file.");
  if ((status.permissions() & (fs::perms::group_write | fs::perms::others_all)) != fs::perms::none)
    fail("may be read or changed by others on this machine: chmod 600 makes it yours alone.");
  std::ifstream input(file, std::ios::binary);
  if (!input) fail("can't be read.");
  std::string text{std::istreambuf_iterator<char>(input), {}};
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  return text;
}

}  // namespace coppice::cli
