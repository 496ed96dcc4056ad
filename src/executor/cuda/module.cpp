#include "executor/cuda/module.h"

#include "build_id.h"
#include "executor/cuda/misfit.h"

__attribute__((visibility("default"))) const coppice::executor::cuda::Module* coppice_cuda_module() {
  using namespace coppice::executor;
  static constexpr cuda::Module kModule = {COPPICE_BUILD, cuda::find_devices, cuda::misfit, cuda::load_cuda_executor};
  return &kModule;
}
