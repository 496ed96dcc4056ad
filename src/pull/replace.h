// Small files and links in folders that other programs read and write meanwhile: each of these sees the old one or the
// new one, and none fails because another made it first.
#pragma once

#include <filesystem>
#include <string>

namespace coppice::pull {

// Each makes the folders, too, and throws std::filesystem::filesystem_error.
void replace_file(const std::filesystem::path& path, const std::string& text);
void replace_link(const std::filesystem::path& path, const std::filesystem::path& target);

}  // namespace coppice::pull
