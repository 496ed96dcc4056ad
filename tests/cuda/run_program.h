// main() of the GPU's tests.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>

namespace coppice::test {

/// What run() returns; 1, and the error's text, where it throws.
template <class F>
int run_program(F&& run) {
  try {
    return run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}

/// run() on each of the host's GPUs, one after the other in this process: what is set for one must be set for the next
/// one, too.
template <class F>
int run_on_each_gpu(F&& run) {
  return run_program([&] {
    int n = 0, worst = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) throw std::runtime_error("there is no GPU");
    for (int i = 0; i < n; ++i) {
      std::printf("GPU %d\n", i);
      if (cudaSetDevice(i) != cudaSuccess) throw std::runtime_error("this GPU can't be used");
      const int status = run();
      worst = status > worst ? status : worst;
    }
    return worst;
  });
}

/// The first argument: fewer and smaller cases, for compute-sanitizer.
inline bool is_small(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "--small") == 0;
}

}  // namespace coppice::test
