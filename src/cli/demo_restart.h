// `coppice demo --restart`: one long prompt's time to its first token: computed, from the pool, and from the disk by a
// server that was started after the first one was killed.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace coppice::cli {

/// Prints the table. `arguments`: serve's, for both servers. `folder`: of the cache; what lies there goes first.
/// `tokens`: of the prompt. Throws std::runtime_error.
void run_demo_restart(const std::vector<std::string>& arguments, const std::filesystem::path& folder, int tokens);

}  // namespace coppice::cli
