// Products of few rows with quantised weights on this GPU, shapes of an 8B model. Beside each its bound: the packed weights' bytes
// over the bandwidth that a device-to-device copy reaches in this run. Timed inside a CUDA graph over several matrices in turn.
//   matmul_cuda_bench [--json FILE]
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>

#include "cuda/replay.h"
#include "matmul/cuda/quant_product.h"

namespace coppice {
namespace {

using matmul::QuantType;
using test::DeviceBytes;

struct Shape {
  const char* name;
  int n_in, n_out;
};
struct Type {
  const char* name;
  QuantType type;
};

/// Random bytes, with scales of 0.01: f16 that are NaN would be as fast, but no one's weights.
std::vector<std::byte> random_matrix(QuantType type, std::size_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> packed(bytes);
  for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
    const std::uint64_t x = random();
    std::memcpy(&packed[i], &x, sizeof x);
  }
  const matmul::cuda::ChunkForm form = matmul::cuda::chunk_form(type);
  constexpr std::uint16_t kHundredth = 0x211f;
  for (std::size_t chunk = 0; chunk < bytes; chunk += static_cast<std::size_t>(form.bytes())) {
    for (int i = 0; i < form.deltas; i += 2)
      std::memcpy(&packed[chunk + static_cast<std::size_t>(form.deltas_at() + i)], &kHundredth, sizeof kHundredth);
  }
  return packed;
}

void bench(const Shape& shape, const Type& type, double bandwidth, std::FILE* json) {
  const matmul::cuda::ChunkForm form = matmul::cuda::chunk_form(type.type);
  const std::size_t bytes = static_cast<std::size_t>(shape.n_out / 16) *
                            static_cast<std::size_t>(shape.n_in / form.inputs) * static_cast<std::size_t>(form.bytes());
  const int n = static_cast<int>(std::max<std::size_t>(bench::kPools, (std::size_t{256} << 20) / bytes));
  std::mt19937_64 random(1);
  const std::vector<std::byte> packed = random_matrix(type.type, bytes, random);
  const DeviceBytes weights(bytes * static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i)
    test::check_cuda(cudaMemcpy(weights.as<std::byte>() + static_cast<std::size_t>(i) * bytes, packed.data(), bytes,
                                cudaMemcpyHostToDevice),
                     "copy");
  std::vector<std::uint16_t> x;
  std::normal_distribution<float> normal;
  for (int i = 0; i < matmul::cuda::kMostRows * shape.n_in; ++i)
    x.push_back(test::to_number(attention::cuda::Number::kBf16, normal(random)));
  const DeviceBytes rows(x), y(static_cast<std::size_t>(matmul::cuda::kMostRows * shape.n_out) * 4);
  const double bound = static_cast<double>(bytes) / bandwidth * 1e6;
  std::printf("%-5s %-22s bound %6.1f us:", type.name, shape.name, bound);
  for (const int n_rows : {1, 2, 4, 8, 16}) {
    bench::Graph graph(
        [&](int i, cudaStream_t stream) {
          const char* error = matmul::cuda::launch_quant_product(
              {type.type, shape.n_in, shape.n_out, n_rows,
               weights.as<std::byte>() + static_cast<std::size_t>(i) * bytes, rows.as<void>(), y.as<float>()},
              stream);
          if (error != nullptr) throw std::runtime_error(error);
        },
        n);
    const bench::Timing t = graph.time(10);
    std::printf("  %2d: %6.1f", n_rows, t.median);
    if (json != nullptr) {
      std::fprintf(json, ",\n    {\"type\": \"%s\", \"case\": \"%s\", \"rows\": %d, \"us\": %.2f, \"bound_us\": %.2f}",
                   type.name, shape.name, n_rows, t.median, bound);
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

void run(const char* json_path) {
  cudaDeviceProp device{};
  test::check_cuda(cudaGetDeviceProperties(&device, 0), "device");
  const double bandwidth = bench::copy_bandwidth();
  std::printf("%s, copies at %.2f TB/s; us by rows\n", device.name, bandwidth * 1e-12);
  std::FILE* json = json_path != nullptr ? std::fopen(json_path, "w") : nullptr;
  if (json != nullptr) {
    std::fprintf(json, "{\n  \"device\": \"%s\",\n  \"products\": [\n    {\"case\": \"copy\", \"tb_s\": %.3f}",
                 device.name, bandwidth * 1e-12);
  }
  for (const Type& type : {Type{"Q4_K", QuantType::kQ4K}, Type{"Q8_0", QuantType::kQ8_0}, Type{"Q6_K", QuantType::kQ6K},
                           Type{"Q5_K", QuantType::kQ5K}, Type{"Q4_0", QuantType::kQ4_0}}) {
    for (const Shape& shape :
         {Shape{"q, k and v", 4096, 6144}, Shape{"attention's output", 4096, 4096}, Shape{"gate and up", 4096, 28672},
          Shape{"down", 14336, 4096}, Shape{"logits", 4096, 128256}}) {
      bench(shape, type, bandwidth, json);
    }
  }
  if (json != nullptr) {
    std::fprintf(json, "\n  ]\n}\n");
    std::fclose(json);
  }
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  try {
    coppice::run(argc > 2 && std::strcmp(argv[1], "--json") == 0 ? argv[2] : nullptr);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
