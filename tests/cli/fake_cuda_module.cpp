// A part for GPUs that has none, is of another version or of another build of this one, or has two with numbers 1 and 3
// that run no model called "misfit": FAKE says which.
#include <stdexcept>

#include "build_id.h"
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
  if (o.kv_format == "lost") o.lost("GPU 3 is lost: its fan fell off");
  throw std::runtime_error("GPU " + std::to_string(o.device) + ", " + o.kv_format + ", rows " +
                           std::to_string(o.max_rows));
}

}  // namespace

extern "C" const cuda::Module* coppice_cuda_module() {
  static constexpr const char* kBuild = kFake == "other" ? "0.0" : kFake == "stale" ? COPPICE_BUILD "x" : COPPICE_BUILD;
  static constexpr cuda::Module kModule = {kBuild, find_devices, misfit, load};
  return &kModule;
}
