#include "cli/version.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "executor/ggml/ggml_executor.h"
#include "simd/target.h"

namespace coppice::cli {

std::string version_text() {
  return fmt::format("coppice {}, commit {}\nkernels: {} (of {})\nggml's kernels: {}", COPPICE_VERSION, kCommit,
                     simd::target(), fmt::join(simd::targets(), ", "), fmt::join(executor::ggml_features(), ", "));
}

}  // namespace coppice::cli
