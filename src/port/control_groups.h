// The control groups that bound this process.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>

namespace coppice::port {

/// Calls visit(folder, version) for the folder of each group that this process is in for `controller` ("memory"), and
/// of each parent up to the mount, of version 1 and 2. In a container a group's path may be the host's: then the mount
/// is the group itself. `root`: where /proc and /sys are looked for.
void for_each_group(const std::filesystem::path& root, std::string_view controller,
                    const std::function<void(const std::filesystem::path& folder, int version)>& visit);

}  // namespace coppice::port
