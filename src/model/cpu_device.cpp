#include "model/cpu_device.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "model/load_error.h"
#include "port/process.h"

namespace coppice::model {

namespace {

ggml_backend_dev_t find_cpu() {
  if (ggml_backend_dev_t linked = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) return linked;
  const auto folder = (port::program_path().parent_path() / "../lib/coppice").lexically_normal();
  ggml_log_callback log = nullptr;
  void* log_data = nullptr;
  ggml_log_get(&log, &log_data);
  ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);  // it would tell which it loads
  // By itself ggml would also look into the working directory, which may be anybody's.
  ggml_backend_load_all_from_path(folder.c_str());
  ggml_log_set(log, log_data);
  ggml_backend_dev_t loaded = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  if (loaded == nullptr) {
    throw LoadError(
        fmt::format("There are no kernels for this processor in {}: is coppice installed whole?", folder.string()));
  }
  return loaded;
}

}  // namespace

ggml_backend_dev_t cpu_device() {
  static ggml_backend_dev_t cpu = find_cpu();
  return cpu;
}

std::vector<std::string> cpu_features() {
  std::vector<std::string> names;
  const auto get = cpu_function<ggml_backend_get_features_t>("ggml_backend_get_features");
  if (get == nullptr) return names;
  for (const ggml_backend_feature* f = get(ggml_backend_dev_backend_reg(cpu_device())); f->name != nullptr; ++f) {
    if (std::string_view(f->value) == "1") names.emplace_back(f->name);
  }
  return names;
}

}  // namespace coppice::model
