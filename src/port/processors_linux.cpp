#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <set>
#include <thread>
#include <utility>

#include "port/control_groups.h"
#include "port/processors.h"

namespace coppice::port {

namespace {

namespace fs = std::filesystem;

/// Processors beyond these aren't looked for.
constexpr int kMostProcessors = 8192;

std::vector<int> processors_of_process() {
  std::vector<int> ids;
  const std::size_t bytes = CPU_ALLOC_SIZE(kMostProcessors);
  if (cpu_set_t* set = CPU_ALLOC(kMostProcessors)) {
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) == 0) {
      for (int id = 0; id < kMostProcessors; ++id) {
        if (CPU_ISSET_S(static_cast<std::size_t>(id), bytes, set)) ids.push_back(id);
      }
    }
    CPU_FREE(set);
  }
  if (!ids.empty()) return ids;
  for (int id = 0; id < static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); ++id) ids.push_back(id);
  return ids;
}

std::optional<std::int64_t> whole_number_in(const fs::path& path) {
  std::ifstream in(path);
  std::int64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

/// Of "0-3,8": 0, 1, 2, 3, 8.
std::set<int> list_in(const fs::path& path) {
  std::set<int> ids;
  std::ifstream in(path);
  int first = 0;
  while (in >> first) {
    int last = first;
    if (in.peek() == '-') in.ignore(), in >> last;
    for (int id = first; id <= std::min(last, kMostProcessors); ++id) ids.insert(id);
    if (in.peek() == ',') in.ignore();
  }
  return ids;
}

/// Of a core with several hardware threads the first one that is usable.
std::vector<int> whole_cores(const fs::path& root, const std::vector<int>& usable) {
  std::set<std::pair<std::int64_t, std::int64_t>> seen;
  std::vector<int> cores;
  for (const int id : usable) {
    const fs::path topology = root / "sys/devices/system/cpu" / ("cpu" + std::to_string(id)) / "topology";
    const auto package = whole_number_in(topology / "physical_package_id"),
               core = whole_number_in(topology / "core_id");
    if (!package || !core || seen.emplace(*package, *core).second) cores.push_back(id);
  }
  return cores;
}

/// A step waits for its slowest thread: cores that do much less than the best ones are left to other work.
int count_fast(const fs::path& root, const std::vector<int>& cores) {
  const std::set<int> performance = list_in(root / "sys/devices/cpu_core/cpus");  // Intel's, where there are two kinds
  const auto fast = [&](auto&& test) { return static_cast<int>(std::ranges::count_if(cores, test)); };
  if (const int n = fast([&](int id) { return performance.contains(id); }); n > 0) return n;
  std::vector<std::int64_t> capacities;  // Arm's
  for (const int id : cores) {
    capacities.push_back(
        whole_number_in(root / "sys/devices/system/cpu" / ("cpu" + std::to_string(id)) / "cpu_capacity").value_or(0));
  }
  const std::int64_t most = std::ranges::max(capacities);
  return static_cast<int>(std::ranges::count_if(capacities, [most](std::int64_t c) { return c * 4 >= most * 3; }));
}

/// Of a group; nothing: it has none.
std::optional<double> quota_of(const fs::path& folder, int version) {
  std::optional<std::int64_t> quota, period;
  if (version == 2) {
    std::ifstream in(folder / "cpu.max");
    std::int64_t q = 0, p = 0;
    if (in >> q >> p) quota = q, period = p;  // "max" is none
  } else {
    quota = whole_number_in(folder / "cpu.cfs_quota_us"), period = whole_number_in(folder / "cpu.cfs_period_us");
  }
  if (!quota || !period || *quota <= 0 || *period <= 0) return std::nullopt;
  return static_cast<double>(*quota) / static_cast<double>(*period);
}

}  // namespace

Processors find_processors(const fs::path& root, std::vector<int> usable) {
  if (usable.empty()) usable = processors_of_process();
  const std::vector<int> cores = whole_cores(root, usable);
  Processors found{.usable = static_cast<int>(usable.size()),
                   .cores = static_cast<int>(cores.size()),
                   .fast = count_fast(root, cores),
                   .nodes = std::max(1, static_cast<int>(memory_nodes(root).size()))};
  for_each_group(root, "cpu", [&found](const fs::path& folder, int version) {
    const auto quota = quota_of(folder, version);
    if (quota && (!found.quota || *quota < *found.quota)) found.quota = quota;
  });
  return found;
}

std::vector<int> memory_nodes(const fs::path& root) {
  const std::set<int> ids = list_in(root / "sys/devices/system/node/has_memory");
  return {ids.begin(), ids.end()};
}

bool interleave_memory(std::span<const int> nodes) {
  constexpr int kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(kMostProcessors / kBits + 1);
  for (const int node : nodes) mask[static_cast<std::size_t>(node / kBits)] |= 1UL << node % kBits;
  return syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask.data(), kBits * mask.size()) == 0;
}

}  // namespace coppice::port
