// Files with secrets.
#pragma once

#include <filesystem>
#include <string>

namespace coppice::cli {

/// What the file holds but the newlines at its end. `what`: it is called so in errors. Its group may read it, nobody
/// else but its owner may read or change it. Throws std::runtime_error: what() is a sentence.
std::string read_private(const std::filesystem::path& file, const std::string& what);

}  // namespace coppice::cli
