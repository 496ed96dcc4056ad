#include "executor/cuda/module.h"

#include "executor/cuda/misfit.h"

__attribute__((visibility("default"))) const coppice::executor::cuda::Module* coppice_cuda_module() {
  using namespace coppice::executor;
  static constexpr cuda::Module kModule = {COPPICE_VERSION, cuda::find_devices, cuda::misfit, cuda::load_cuda_executor};
  return &kModule;
}
