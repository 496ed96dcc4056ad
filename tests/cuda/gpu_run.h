// What the programs that try single kernels share: random shapes, a line a case, device memory read back.
#pragma once

#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/cuda_step.h"

namespace coppice::test {

struct GpuRun {
  std::mt19937 random;
  int failed = 0, n = 0;

  explicit GpuRun(std::uint64_t seed) : random(static_cast<std::mt19937::result_type>(seed)) {}
  int up_to(int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); }
  bool coin() { return random() % 2 == 0; }
  std::vector<float> normals(int n_numbers, float scale = 1.0F) {
    std::normal_distribution<float> normal;
    std::vector<float> x;
    for (int i = 0; i < n_numbers; ++i) x.push_back(scale * normal(random));
    return x;
  }
  void report(const std::string& what, double error, double tolerance) {
    const bool ok = error <= tolerance;  // NaN is not
    std::printf("%-6s %s: error %.1e\n", ok ? "ok" : "FAILED", what.c_str(), error);
    std::fflush(stdout);
    failed += ok ? 0 : 1;
    ++n;
  }
  /// A program's status.
  int end() const {
    std::printf("%d of %d failed\n", failed, n);
    return failed == 0 ? 0 : 1;
  }
};

/// What a launch returns; waits for it. Throws std::runtime_error.
inline void finish(const char* error) {
  if (error != nullptr) throw std::runtime_error(error);
  check_cuda(cudaDeviceSynchronize(), "launch");
}

template <class T>
std::vector<T> read(const DeviceBytes& from, std::size_t n) {
  std::vector<T> to(n);
  check_cuda(cudaMemcpy(to.data(), from.as<void>(), n * sizeof(T), cudaMemcpyDeviceToHost), "copy");
  return to;
}

/// Room for n values, each byte 0xff.
template <class T>
DeviceBytes poisoned(std::size_t n) {
  DeviceBytes made(n * sizeof(T));
  made.fill(0xff);
  return made;
}

inline constexpr double kBf16 = 1.0 / 256;  ///< relative to a number: half a last place, and a little

inline std::vector<double> read_bf16(const DeviceBytes& from, std::size_t n) {
  std::vector<double> to;
  for (const std::uint16_t bits : read<std::uint16_t>(from, n))
    to.push_back(from_number(attention::cuda::Number::kBf16, bits));
  return to;
}

/// The largest |got - expected| / (|expected| + floor).
template <class T>
double worst(const std::vector<T>& got, const std::vector<double>& expected, double floor) {
  double most = 0.0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - expected[i]) / (std::abs(expected[i]) + floor);
    most = error <= most ? most : error;
  }
  return most;
}

inline double inverse_rms(const double* x, int n, double eps) {
  double squares = 0.0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  return 1.0 / std::sqrt(squares / n + eps);
}

}  // namespace coppice::test
