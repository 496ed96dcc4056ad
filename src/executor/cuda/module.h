// What libcoppice_cuda.so gives the program that loads it (src/cli/devices.cpp). Both are built from the same sources
// with the same compiler: C++ types cross, so a module of another build is refused. Never unloaded.
#pragma once

#include <memory>
#include <string>

#include "executor/cuda/cuda_executor.h"

namespace coppice::executor::cuda {

struct Module {
  /// COPPICE_BUILD of build_id.h: the version and a hash of all headers. First for good: it is read before the rest is
  /// known to fit.
  const char* build;
  Devices (*find_devices)();
  std::string (*misfit)(const model::Model& model);
  std::unique_ptr<Executor> (*load)(model::Model model, const CudaOptions& options, const Progress& progress);
};

}  // namespace coppice::executor::cuda

extern "C" const coppice::executor::cuda::Module* coppice_cuda_module();
