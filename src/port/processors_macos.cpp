#include <sys/sysctl.h>

#include <algorithm>
#include <thread>

#include "port/processors.h"

namespace coppice::port {

namespace {

/// 0: there is no such number.
int number_of(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return ::sysctlbyname(name, &value, &size, nullptr, 0) == 0 ? std::max(value, 0) : 0;
}

}  // namespace

/// Level 0 is the fastest kind of cores. A process can't be bound to some of them, and there are no quotas.
Processors find_processors(const std::filesystem::path&, std::vector<int> usable) {
  Processors found;
  found.usable = usable.empty() ? static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))
                                : static_cast<int>(usable.size());
  const int cores = number_of("hw.physicalcpu"), fast = number_of("hw.perflevel0.physicalcpu");
  found.cores = cores > 0 ? std::min(cores, found.usable) : found.usable;
  found.fast = fast > 0 ? std::min(fast, found.cores) : found.cores;
  return found;
}

std::vector<int> memory_nodes(const std::filesystem::path&) {
  return {};
}

bool interleave_memory(std::span<const int> nodes) {
  return nodes.empty();
}

}  // namespace coppice::port
