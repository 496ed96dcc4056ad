// What systems do with files in ways of their own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

struct stat;

namespace coppice::port {

/// When the file's contents last changed, nanoseconds since 1970.
std::int64_t changed_ns(const struct stat& found);

/// A flag for open(): transfers go past the system's cache, and are on the disk when they are over. 0: the system has
/// no such flag.
int direct_flag();

/// As fdatasync(): 0 when what was written is on the disk; else -1, and errno says why.
int sync_data(int file);

/// The file system below a folder, as the system names it: "ext4 on /dev/vda1".
std::string disk_of(const std::filesystem::path& folder);

}  // namespace coppice::port
