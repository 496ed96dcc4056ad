// A part for GPUs that has none, another version, or two with numbers 1 and 3 that run no model called "misfit": FAKE says which.
#include <stdexcept>

#include "executor/cuda/module.h"

namespace {

using namespace coppice::executor;

constexpr std::string_view kFake = FAKE;

cuda::Devices find_devices() {
  if (kFake == "none") return {{}, "there is no NVIDIA driver, or it is too old"};
  return {{{1, "first"}, {3, "second"}}, {}};
}

std::string misfit(const coppice::model::Model& model) {
  return model.spec.name == "misfit" ? "experts" : "";
}

std::unique_ptr<Executor> load(coppice::model::Model, const cuda::CudaOptions& o, const Progress&) {
  throw std::runtime_error("GPU " + std::to_string(o.device) + ", " + o.kv_format + ", rows " +
                           std::to_string(o.max_rows));
}

}  // namespace

extern "C" const cuda::Module* coppice_cuda_module() {
  static constexpr cuda::Module kModule = {kFake == "other" ? "0.0" : COPPICE_VERSION, find_devices, misfit, load};
  return &kModule;
}
