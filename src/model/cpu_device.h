// ggml's CPU kernels, reached through its registry of devices: they are linked in, or modules for several kinds of CPU.
#pragma once

#include <ggml-backend.h>

#include <string>
#include <vector>

namespace coppice::model {

/// ggml's CPU. Where it is no part of this program, the best module for this processor is loaded, from the folder
/// ../lib/coppice beside the program's own (docs/decisions.md, "One package for all x86-64"); the first call does so.
/// Thread safe. Throws LoadError: there is none that this processor can run.
ggml_backend_dev_t cpu_device();

/// A function of its backend that isn't in ggml's common interface, of the type F; null: it has none of this name.
template <class F>
F cpu_function(const char* name) {
  return reinterpret_cast<F>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu_device()), name));
}

/// The instruction sets that its kernels were compiled for, in ggml's words: "AVX2", "AVX512_VNNI". Throws as
/// cpu_device().
std::vector<std::string> cpu_features();

}  // namespace coppice::model
