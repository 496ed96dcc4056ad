// Products with packed weights on this GPU, shapes of an 8B model. Beside each its bound: the packed weights' bytes
// over the bandwidth that a device-to-device copy reaches in this run; for many rows, the share of the tensor cores'
// bf16 rate (989 TFLOP/s). Timed inside a CUDA graph over several matrices in turn.
//   matmul_cuda_bench [--json FILE] [--quick: Q4_K and BF16 only] [--sweep: thread blocks of several kinds, Q4_K and
//   Q6_K]
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>

#include "cuda/random_packed.h"
#include "cuda/replay.h"
#include "matmul/cuda/quant_product.h"

namespace coppice {
namespace {

using matmul::QuantType;
using test::DeviceBytes;

constexpr int kMostRows = 2048;

struct Shape {
  const char* name;
  int n_in, n_out;
};
struct Type {
  const char* name;
  QuantType type;
};

/// Matrices of a shape, enough that nothing of one is left in the L2 cache, and rows for them.
class Matrices {
 public:
  Matrices(const Shape& shape, const Type& type) : shape_(shape), type_(type) {
    bytes_ = bench::packed_bytes(type.type, shape.n_in, shape.n_out);
    n_ = static_cast<int>(std::max<std::size_t>(bench::kPools, (std::size_t{256} << 20) / bytes_));
    std::mt19937_64 random(1);
    const std::vector<std::byte> packed = bench::random_packed(type.type, bytes_, random);
    weights_ = DeviceBytes(bytes_ * static_cast<std::size_t>(n_));
    for (int i = 0; i < n_; ++i) {
      test::check_cuda(i == 0 ? cudaMemcpy(at(0), packed.data(), bytes_, cudaMemcpyHostToDevice)
                              : cudaMemcpy(at(i), at(0), bytes_, cudaMemcpyDeviceToDevice),
                       "copy");
    }
    std::vector<std::uint16_t> x(static_cast<std::size_t>(kMostRows * shape.n_in));
    std::normal_distribution<float> normal;
    constexpr std::size_t kDrawn = 1 << 18;
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = i < kDrawn ? test::to_number(attention::cuda::Number::kBf16, normal(random)) : x[i - kDrawn];
    rows_ = DeviceBytes(x);
    y_ = DeviceBytes(static_cast<std::size_t>(kMostRows) * static_cast<std::size_t>(shape.n_out) * 4);
    sums_ = DeviceBytes(matmul::cuda::product_scratch_sums(test::current_gpu()) * sizeof(float));
    flags_ = DeviceBytes(matmul::cuda::kProductFlags * sizeof(std::uint32_t));
    flags_.fill(0);
  }

  double bytes() const { return static_cast<double>(bytes_); }

  double time(int n_rows, const matmul::cuda::ProductTuning& tuning, int replays) const {
    bench::Graph graph(
        [&](int i, const cuda::Gpu& gpu) {
          const char* error = matmul::cuda::launch_quant_product({type_.type,
                                                                  shape_.n_in,
                                                                  shape_.n_out,
                                                                  n_rows,
                                                                  at(i),
                                                                  rows_.as<void>(),
                                                                  y_.as<float>(),
                                                                  {sums_.as<float>(), flags_.as<std::uint32_t>()}},
                                                                 gpu, tuning);
          if (error != nullptr) throw std::runtime_error(error);
        },
        n_rows > 256 ? bench::kPools : n_);
    return graph.time(replays).median;
  }

 private:
  std::byte* at(int i) const { return weights_.as<std::byte>() + static_cast<std::size_t>(i) * bytes_; }

  Shape shape_;
  Type type_;
  std::size_t bytes_ = 0;
  int n_ = 0;
  DeviceBytes weights_, rows_, y_, sums_, flags_;
};

void bench(const Shape& shape, const Type& type, double bandwidth, std::FILE* json) {
  const Matrices matrices(shape, type);
  const double bound = matrices.bytes() / bandwidth * 1e6;
  std::printf("%-5s %-22s bound %6.1f us:", type.name, shape.name, bound);
  for (const int n_rows : {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048}) {
    if (n_rows > 128 && shape.n_out > 100000) break;  // of a prompt only the last row needs logits
    const double us = matrices.time(n_rows, {}, n_rows > 64 ? 5 : 10);
    std::printf("  %d: %.1f", n_rows, us);
    if (n_rows >= 128) std::printf(" (%.0f %%)", 2e-4 * n_rows * shape.n_in * shape.n_out / us / 989);
    if (json != nullptr) {
      std::fprintf(json, ",\n    {\"type\": \"%s\", \"case\": \"%s\", \"rows\": %d, \"us\": %.2f, \"bound_us\": %.2f}",
                   type.name, shape.name, n_rows, us, bound);
    }
  }
  std::printf("\n");
  std::fflush(stdout);
}

void sweep(const Shape& shape, const Type& type, double bandwidth, int n_multiprocessors) {
  const Matrices matrices(shape, type);
  std::printf("%-5s %-22s bound %6.1f us\n", type.name, shape.name, matrices.bytes() / bandwidth * 1e6);
  for (const int n_rows : {1, 2, 3, 4}) {
    std::printf("  %2d rows, mma %6.1f;", n_rows, matrices.time(n_rows, {.most_byte_rows = 0}, 7));
    struct Kind {
      int warps, slots, blocks;
    };
    for (const Kind& k : {Kind{8, 0, 1}, Kind{8, 0, 2}, Kind{8, 2, 2}, Kind{16, 2, 1}, Kind{16, 3, 1}}) {
      const matmul::cuda::ProductTuning tuning = {
          .most_byte_rows = 4, .n_warps = k.warps, .n_slots = k.slots, .n_blocks = k.blocks * n_multiprocessors};
      std::printf("  %dx%dx%d %.1f", k.warps, k.slots, k.blocks, matrices.time(n_rows, tuning, 7));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void sweep_tiles(const Shape& shape, const Type& type, double bandwidth, int n_multiprocessors) {
  const Matrices matrices(shape, type);
  std::printf("%-5s %-22s bound %6.1f us\n", type.name, shape.name, matrices.bytes() / bandwidth * 1e6);
  for (const int n_rows : {1, 8, 16, 32, 64}) {
    std::printf("  %2d rows:", n_rows);
    if (n_rows <= 32)
      std::printf(" mma %.1f", matrices.time(n_rows, {.most_byte_rows = 0, .least_tile_rows = 1 << 20}, 7));
    for (const int blocks : {1, 2}) {
      const matmul::cuda::ProductTuning tuning = {
          .most_byte_rows = 0, .least_tile_rows = 1, .n_tile_blocks = blocks * n_multiprocessors};
      std::printf("  x%d %.1f", blocks, matrices.time(n_rows, tuning, 7));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void run(const char* json_path, bool sweeps, bool quick) {
  cudaDeviceProp device{};
  test::check_cuda(cudaGetDeviceProperties(&device, 0), "device");
  const double bandwidth = bench::copy_bandwidth();
  std::printf("%s, copies at %.2f TB/s; us by rows\n", device.name, bandwidth * 1e-12);
  std::FILE* json = json_path != nullptr ? std::fopen(json_path, "w") : nullptr;
  if (json != nullptr) {
    std::fprintf(json, "{\n  \"device\": \"%s\",\n  \"products\": [\n    {\"case\": \"copy\", \"tb_s\": %.3f}",
                 device.name, bandwidth * 1e-12);
  }
  for (const Type& type :
       {Type{"Q4_K", QuantType::kQ4K}, Type{"Q6_K", QuantType::kQ6K}, Type{"Q8_0", QuantType::kQ8_0}}) {
    if (!sweeps) break;
    for (const Shape& shape :
         {Shape{"attention's output", 4096, 4096}, Shape{"q, k and v", 4096, 6144}, Shape{"gate and up", 4096, 28672},
          Shape{"down", 14336, 4096}, Shape{"logits", 4096, 128256}})
      sweep(shape, type, bandwidth, device.multiProcessorCount);
  }
  for (const Type& type :
       {Type{"Q4_K", QuantType::kQ4K}, Type{"Q8_0", QuantType::kQ8_0}, Type{"BF16", QuantType::kBf16}}) {
    if (!sweeps) break;
    for (const Shape& shape : {Shape{"attention's output", 4096, 4096}, Shape{"q, k and v", 4096, 6144},
                               Shape{"gate and up", 4096, 28672}, Shape{"down", 14336, 4096}})
      sweep_tiles(shape, type, bandwidth, device.multiProcessorCount);
  }
  if (sweeps) return;
  for (const Type& type : {Type{"Q4_K", QuantType::kQ4K}, Type{"Q8_0", QuantType::kQ8_0}, Type{"Q6_K", QuantType::kQ6K},
                           Type{"Q5_K", QuantType::kQ5K}, Type{"Q4_0", QuantType::kQ4_0},
                           Type{"MXFP4", QuantType::kMxfp4}, Type{"BF16", QuantType::kBf16}}) {
    if (quick && type.type != QuantType::kQ4K && type.type != QuantType::kBf16) continue;
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
  const char* json = nullptr;
  bool sweeps = false, quick = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) json = argv[++i];
    if (std::strcmp(argv[i], "--sweep") == 0) sweeps = true;
    if (std::strcmp(argv[i], "--quick") == 0) quick = true;
  }
  try {
    coppice::run(json, sweeps, quick);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
