// The executor on ggml: owns its weights, the KV pool and the worker threads, and runs steps on
// the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/base/progress.h"
#include "executor/executor.h"
#include "model/model.h"

namespace coppice::executor {

struct GgmlOptions {
  std::string attention = "auto";  ///< auto, tree, gather, dense
  std::string kv_format = "f16";   ///< f16, int8, turbo4
  std::size_t kv_bytes = 0;        ///< the pool's budget
  int block_size = 32;             ///< 8, 16, 32 or 64
  int n_threads = 0;               ///< 0: up to one for each core that is free
  int max_rows = 512;              ///< of one step
  int max_sequences = 32;          ///< of one step
  std::int32_t context = 0;        ///< longest sequence; 0: the model's
};

/// Takes long: it packs the weights. Throws model::LoadError with one sentence: a budget too small, an unknown option,
/// heads that no backend serves.
std::unique_ptr<Executor> load_ggml_executor(model::Model model, const GgmlOptions& options, const Progress& progress);

/// The instruction sets that ggml's kernels in use were compiled for, in ggml's words: "AVX2", "AVX512_VNNI". Throws
/// model::LoadError: there are none for this processor.
std::vector<std::string> ggml_features();

}  // namespace coppice::executor
