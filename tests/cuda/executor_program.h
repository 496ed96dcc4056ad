// What the programs that try executors on GPUs share: how one is loaded, a line a check, a seed, the end.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "cuda/run_program.h"
#include "cuda/tiny_model.h"
#include "executor/cuda/cuda_executor.h"

namespace coppice::test {

inline std::unique_ptr<executor::Executor> on_gpu(const std::string& path, executor::cuda::CudaOptions options) {
  return executor::cuda::load_cuda_executor(model::load_model(path), std::move(options), {});
}

inline std::string write_model(const TinyModel& model) {
  return write_tiny_model(model, scratch_folder() / "tiny.gguf").string();
}

/// 1: it failed.
inline int report(const std::string& what, bool ok) {
  std::printf("%-6s %s\n", ok ? "ok" : "FAILED", what.c_str());
  std::fflush(stdout);
  return ok ? 0 : 1;
}

/// COPPICE_SEED, or else this one.
inline std::uint64_t program_seed(std::uint64_t usual) {
  const char* given = std::getenv("COPPICE_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 10) : usual;
  std::printf("COPPICE_SEED=%llu replays this test\n", static_cast<unsigned long long>(seed));
  return seed;
}

/// run(argc, argv) returns how many checks failed.
template <class F>
int run_checks(int argc, char** argv, F&& run) {
  return run_program([&] {
    spdlog::set_level(spdlog::level::warn);
    const int failed = run(argc, argv);
    std::printf("%d failed\n", failed);
    return failed == 0 ? 0 : 1;
  });
}

}  // namespace coppice::test
