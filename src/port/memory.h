// How much memory there is to take.
#pragma once

#include <cstddef>
#include <filesystem>

namespace coppice::port {

/// Bytes that this process may take without swapping: what the kernel reckons to be available, within the limits of its
/// control groups and their parents, version 1 and 2. Pages of files that the kernel would drop count as free. 0:
/// unknown. `root`: where /proc and /sys are looked for, another one in tests.
std::size_t free_memory(const std::filesystem::path& root = "/");

/// Bytes of memory that this process holds. 0: unknown.
std::size_t resident_memory();

/// What is freed goes back to the system from some MiB on, where the C library would keep it. Before any other thread.
void keep_memory_flat();

}  // namespace coppice::port
