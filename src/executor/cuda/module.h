// What libcoppice_cuda.so gives the program that loads it (src/cli/devices.cpp). Both are built from the same sources with the same
// compiler: C++ types cross. Never unloaded.
#pragma once

#include <memory>
#include <string>

#include "executor/cuda/cuda_executor.h"

namespace coppice::executor::cuda {

struct Module {
  const char* version;  ///< COPPICE_VERSION; another one's module is not used
  Devices (*find_devices)();
  std::string (*misfit)(const model::Model& model);
  std::unique_ptr<Executor> (*load)(model::Model model, const CudaOptions& options, const Progress& progress);
};

}  // namespace coppice::executor::cuda

extern "C" const coppice::executor::cuda::Module* coppice_cuda_module();
