// PoolMemory: zeroed memory, on huge pages, and in memory from the beginning. Left to the first write, pages are
// cleared in the middle of steps, while all workers wait for one: on a virtual machine, whose host may have to find
// them first, 1 to 4 ms for each huge page. And a machine that hasn't as much as was promised says so under load only.
//
// Not thread safe.
#pragma once

#include <cstddef>

#include "executor/base/progress.h"
#include "port/mapping.h"

namespace coppice::executor {

class PoolMemory {
 public:
  PoolMemory() = default;
  /// Takes the memory with n_threads threads; tells stage "memory" of the progress. Kernels before Linux 5.14 give
  /// pages with the first write all the same. Throws model::LoadError when memory is refused, std::system_error when
  /// threads are.
  PoolMemory(std::size_t size, int n_threads, const Progress& progress);

  std::byte* data() const { return memory_.data(); }  ///< page aligned
  std::size_t size() const { return memory_.size(); }

 private:
  port::Mapping memory_;
};

}  // namespace coppice::executor
