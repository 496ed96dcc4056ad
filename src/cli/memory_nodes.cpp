#include "cli/memory_nodes.h"

#include <spdlog/spdlog.h>

#include <vector>

#include "port/processors.h"

namespace coppice::cli {

void place_memory(const std::string& numa) {
  if (numa != "interleave") return;
  const std::vector<int> nodes = port::memory_nodes();
  if (nodes.size() < 2) {
    spdlog::info("--numa interleave: this machine has one memory node");
  } else if (port::interleave_memory(nodes)) {
    spdlog::info("memory lies on {} nodes in turn", nodes.size());
  } else {
    spdlog::warn("--numa interleave: the system refuses it, and memory lies where it is touched first");
  }
}

}  // namespace coppice::cli
