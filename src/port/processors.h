// How many processors this process may use, and which of them are worth a thread that computes.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace coppice::port {

struct Processors {
  int usable = 1;                    ///< that the scheduler may run this process on (sched_setaffinity, cpusets)
  int cores = 1;                     ///< whole ones among them: hardware threads of a core count once
  int fast = 1;                      ///< of these, those of the faster kind where there are two
  std::optional<double> quota = {};  ///< processors' worth of time that the control groups allow, the least of all

  /// Threads that compute: one for each fast core, and together below the quota. At least 1.
  int threads() const;
  /// Why so many, as a sentence's end: "4 whole cores of 8 processors".
  std::string reason() const;
};

/// `root`: where /proc and /sys are looked for, another one in tests. `usable`: ids of processors; empty: those of this process.
/// What the system doesn't tell counts as unbounded, and each processor as a core. Never throws for that.
Processors find_processors(const std::filesystem::path& root = "/", std::vector<int> usable = {});

}  // namespace coppice::port
