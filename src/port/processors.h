// How many processors this process may use, and which of them are worth a thread that computes; and the parts of the
// memory that are near to some of them. Any thread.
//
// How many threads compute without --threads: Processors::threads(), by choose_threads()
// (executor/ggml/ggml_executor.cpp). A step may have fewer: thread_governor.h and step_cost.h (executor/ggml/graph).
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace coppice::port {

struct Processors {
  int usable = 1;                    ///< that the scheduler may run this process on (sched_setaffinity, cpusets)
  int cores = 1;                     ///< whole ones among them: hardware threads of a core count once
  int fast = 1;                      ///< of these, those of the faster kind where there are two
  int nodes = 1;                     ///< parts of the memory, each nearer to some processors than to others
  std::optional<double> quota = {};  ///< processors' worth of time that the control groups allow, the least of all

  /// Threads that compute: one for each fast core, and together below the quota. At least 1.
  int threads() const;
  /// Why so many, as a sentence's end: "4 whole cores of 8 processors".
  std::string reason() const;
};

/// `root`: where /proc and /sys are looked for, another one in tests. `usable`: ids of processors; empty: those of this
/// process. What the system doesn't tell counts as unbounded, and each processor as a core. Never throws for that.
Processors find_processors(const std::filesystem::path& root = "/", std::vector<int> usable = {});

/// Their ids. Empty: the system doesn't tell, or has no such parts.
std::vector<int> memory_nodes(const std::filesystem::path& root = "/");

/// Pages that this thread and those that it starts touch first from now on lie on these nodes in turn. False: the
/// system refuses.
bool interleave_memory(std::span<const int> nodes);

}  // namespace coppice::port
