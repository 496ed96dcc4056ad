// What a quantised product costs (docs/decisions.md, "Packed products on CPUs"), with its weights in a core's own cache
// and with weights from memory, as each step meets them. tests/matmul checks the results.
//   matmul_bench --type q4_1 --rows 1,4,8,16 --threads 1,2
#include <fmt/format.h>
#include <hwy/aligned_allocator.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "matmul/quant_file.h"
#include "matmul/quant_matrix.h"
#include "stopwatch.h"

namespace coppice::bench {

namespace {

using matmul::Claims;
using matmul::QuantMatrix;
using matmul::QuantType;

struct Options {
  std::string type = "q4_1";
  std::vector<int> rows = {1, 4, 8, 16}, threads = {1, 2};
  int n_in = 576, n_out = 3072, matrices = 60, repetitions = 9;
};

const std::map<std::string, QuantType> kTypes = {
    {"q4_0", QuantType::kQ4_0}, {"q4_1", QuantType::kQ4_1},    {"q5_0", QuantType::kQ5_0}, {"q5_1", QuantType::kQ5_1},
    {"q8_0", QuantType::kQ8_0}, {"iq4_nl", QuantType::kIq4Nl}, {"q4_k", QuantType::kQ4K},  {"q5_k", QuantType::kQ5K},
    {"q6_k", QuantType::kQ6K},  {"iq4_xs", QuantType::kIq4Xs}};

/// Bytes below 64: scales are small numbers, whatever the block's form.
std::vector<std::unique_ptr<QuantMatrix>> random_matrices(const Options& o) {
  const QuantType type = kTypes.at(o.type);
  std::mt19937 random(1);
  std::vector<std::unique_ptr<QuantMatrix>> matrices;
  const auto n_blocks = static_cast<std::size_t>(o.n_in / QuantMatrix::file_block(type) * o.n_out);
  std::vector<std::byte> blocks(n_blocks * matmul::file_bytes(type));
  for (std::byte& b : blocks) b = static_cast<std::byte>(random() % 64);
  for (int i = 0; i < o.matrices; ++i) {
    matrices.push_back(std::make_unique<QuantMatrix>(type, o.n_in, o.n_out, blocks));
  }
  return matrices;
}

/// One pass through `count` products after each other: either all matrices, or the first of them again and again.
void measure(const Options& o, const std::vector<std::unique_ptr<QuantMatrix>>& matrices, int rows, int threads,
             bool from_memory) {
  // Aligned as tensors are.
  const auto x = hwy::AllocateAligned<float>(static_cast<std::size_t>(rows * o.n_in));
  const auto y = hwy::AllocateAligned<float>(static_cast<std::size_t>(rows * o.n_out));
  std::fill_n(x.get(), rows * o.n_in, 0.5F);
  Claims claims;
  const Samples samples = time_step(threads, o.repetitions, [&](int worker, Barrier& barrier) {
    for (const auto& matrix : matrices) {
      const QuantMatrix::Product product{from_memory ? matrix.get() : matrices.front().get(), y.get()};
      QuantMatrix::multiply({&product, 1}, {x.get(), rows}, claims, {worker, threads});
      barrier.wait();
    }
  });
  const double seconds = median(samples.wall) / static_cast<double>(matrices.size());
  const double multiply_adds = static_cast<double>(o.n_in) * o.n_out * rows;
  const double blocks = multiply_adds / QuantMatrix::kBlock / QuantMatrix::kTileOutputs;  // of a tile, times rows
  fmt::print("{:<6} {:>4} {:>7}  {:<7} {:>9.1f} {:>14.2f} {:>10.1f} {:>8.2f}\n", o.type, rows, threads,
             from_memory ? "memory" : "cache", 1e6 * seconds, 1e9 * seconds * threads / blocks,
             multiply_adds / seconds / 1e9, static_cast<double>(matrices.front()->bytes()) / seconds / 1e9);
}

void run(const Options& o) {
  const auto matrices = random_matrices(o);
  fmt::print("{} matrices, {} -> {}, {:.0f} KiB each; medians of {} runs\n", o.matrices, o.n_in, o.n_out,
             static_cast<double>(matrices.front()->bytes()) / 1024, o.repetitions);
  fmt::print("{:<6} {:>4} {:>7}  {:<7} {:>9} {:>14} {:>10} {:>8}\n", "type", "rows", "threads", "from", "us each",
             "ns/block*row", "G madd/s", "GB/s");
  for (const int rows : o.rows) {
    for (const int threads : o.threads) {
      for (const bool from_memory : {false, true}) measure(o, matrices, rows, threads, from_memory);
    }
  }
}

}  // namespace

}  // namespace coppice::bench

int main(int argc, char** argv) {
  coppice::bench::Options options;
  CLI::App app("Products with quantised weights");
  app.add_option("--type", options.type)->check(CLI::IsMember(coppice::bench::kTypes));
  app.add_option("--rows", options.rows, "rows of x")->delimiter(',')->check(CLI::Range(1, 1 << 16));
  app.add_option("--threads", options.threads, "numbers of threads")->delimiter(',')->check(CLI::Range(1, 256));
  app.add_option("--in", options.n_in, "inputs, a multiple of 32, or 256 for types with blocks of 256")
      ->check(CLI::Range(32, 1 << 20));
  app.add_option("--out", options.n_out, "outputs")->check(CLI::Range(1, 1 << 20));
  app.add_option("--matrices", options.matrices, "as many as no cache holds")->check(CLI::Range(1, 10000));
  app.add_option("--repetitions", options.repetitions, "after a warm-up")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const int block = coppice::matmul::QuantMatrix::file_block(coppice::bench::kTypes.at(options.type));
  if (options.n_in % block != 0 || !coppice::matmul::QuantMatrix::supported()) {
    fmt::print(stderr, "matmul_bench: --in must be a multiple of {}, and the CPU must have AVX2\n", block);
    return 2;
  }
  try {
    coppice::bench::run(options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "matmul_bench: {}\n", error.what());
    return 2;
  }
}
