// RealFiles: the system's files, as FileSystem wants them. Linux; other systems lack only direct reads and writes.
#pragma once

#include <filesystem>
#include <memory>

#include "tier/disk/file_system.h"

namespace coppice::tier {

/// `root`: the folder. Nothing is touched yet.
std::unique_ptr<FileSystem> make_real_files(std::filesystem::path root);

}  // namespace coppice::tier
