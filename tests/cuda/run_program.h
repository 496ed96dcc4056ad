// main() of the GPU's tests.
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>

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

/// The first argument: fewer and smaller cases, for compute-sanitizer.
inline bool is_small(int argc, char** argv) {
  return argc > 1 && std::strcmp(argv[1], "--small") == 0;
}

}  // namespace coppice::test
