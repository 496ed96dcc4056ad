// The executor on an NVIDIA GPU: weights and the KV pool lie there, and a step is launches of our own kernels; decodes
// as a CUDA graph. It works ahead (depth 1): submit() and sample() only launch. misfit.h says which models it takes.
// Keys and values are bf16 (--kv-format f16: Gemma overflows f16) or int8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/base/progress.h"
#include "executor/executor.h"
#include "model/model.h"

namespace spdlog {
class logger;
}

namespace coppice::executor::cuda {

struct CudaOptions {
  int device = 0;                 ///< CUDA's number
  std::string kv_format = "f16";  ///< f16, int8
  std::size_t kv_bytes = 0;       ///< the pool's budget; 0: most of what weights and steps leave free
  int block_size = 32;            ///< the only one
  int max_rows = 512;             ///< of one step
  int max_sequences = 32;         ///< of one step
  std::int32_t context = 0;       ///< longest sequence; 0: the model's
  std::size_t state_bytes = 0;    ///< for partial states of attention; 0: a share of the GPU's memory (step_plan.h)
  /// Called when the GPU is lost (a fault of a kernel or of the card), or the model's file was changed while the
  /// weights slept: nothing runs any more in this process, which should end. Its argument is one sentence. If there is
  /// none, or it returns, steps fail.
  std::function<void(const std::string&)> lost;
  /// Where the module logs; none: to its own. It is another one than the program's where spdlog is linked into both.
  std::shared_ptr<spdlog::logger> log;
};

struct DeviceName {
  int number = 0;  ///< CUDA's
  std::string name;
};

/// GPUs that the kernels run on, and why others don't; or, if there is none, why not, as part of a sentence.
struct Devices {
  std::vector<DeviceName> usable;
  std::string why_none;
};
Devices find_devices();

/// Takes long. Throws model::LoadError with one sentence: too little memory, an option or a model that it can't serve.
std::unique_ptr<Executor> load_cuda_executor(model::Model model, const CudaOptions& options, const Progress& progress);

}  // namespace coppice::executor::cuda
