// How much memory this process may still take.
#pragma once

#include <cstddef>
#include <string>

namespace coppice::cli {

/// Bytes: the kernel's estimate of available memory, or what the process's control group leaves, if less.
/// 0 when the system does not tell.
std::size_t free_memory();

/// "1.43 GiB", "512 MiB".
std::string size_text(std::size_t bytes);

}  // namespace coppice::cli
