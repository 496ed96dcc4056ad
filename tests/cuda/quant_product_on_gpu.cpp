// Products of packed weights on the GPU against the weights read one by one, in double precision (rounded to bf16 where the product
// says so); run twice, they must give the same bits. Prints a line a product; exits with 1 if an error is too large. --small: for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "cuda/run_program.h"
#include "cuda/tile_weight.h"
#include "matmul/cuda/quant_product.h"
#include "matmul/quant_weights.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using matmul::QuantType;

/// Relative to the sum of absolute terms, beyond what TileWeight leaves open: only sums are rounded, to f32.
constexpr double kTolerance = 2e-6;
struct Product {
  QuantType type;
  int n_in, n_out, n_rows;
  matmul::cuda::ProductTuning tuning;

  int least_tile_rows() const {
    return tuning.least_tile_rows > 0 ? tuning.least_tile_rows : matmul::cuda::least_tile_rows(n_in, n_out);
  }
  bool rounds_weights() const { return !tuning.plain && n_rows >= least_tile_rows() && n_rows > tuning.most_byte_rows; }
};

/// Shared by all products, as in use.
struct Scratch {
  test::DeviceBytes sums{matmul::cuda::product_scratch_sums() * sizeof(float)};
  test::DeviceBytes flags{matmul::cuda::kProductFlags * sizeof(std::uint32_t)};
  Scratch() {
    sums.fill(0xff);
    flags.fill(0);
  }
};

/// The largest error (kTolerance), or infinity if the second run gave other bits.
double error_of(const Product& c, const Scratch& scratch, std::mt19937& random) {
  const test::QuantWeights w = test::random_weights(c.type, c.n_in, c.n_out, random);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> x;
  for (int i = 0; i < c.n_rows * c.n_in; ++i) x.push_back(test::to_number(Number::kBf16, normal(random)));
  const test::DeviceBytes weights(matmul::cuda::pack(c.type, c.n_in, c.n_out, w.bytes)), rows(x);
  std::vector<float> y(static_cast<std::size_t>(c.n_rows * c.n_out)), again = y;
  const test::DeviceBytes out(y.size() * sizeof(float));
  for (std::vector<float>* to : {&y, &again}) {
    out.fill(0xff);
    const char* error =
        matmul::cuda::launch_quant_product({c.type,
                                            c.n_in,
                                            c.n_out,
                                            c.n_rows,
                                            weights.as<std::byte>(),
                                            rows.as<void>(),
                                            out.as<float>(),
                                            {scratch.sums.as<float>(), scratch.flags.as<std::uint32_t>()}},
                                           nullptr, c.tuning);
    if (error != nullptr) throw std::runtime_error(error);
    test::check_cuda(cudaDeviceSynchronize(), "product");
    test::check_cuda(cudaMemcpy(to->data(), out.as<void>(), y.size() * sizeof(float), cudaMemcpyDeviceToHost), "copy");
  }
  if (std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) != 0) return INFINITY;
  double worst = 0.0;
  std::vector<double> x_values;
  for (const std::uint16_t bits : x) x_values.push_back(test::from_number(Number::kBf16, bits));
  for (int o = 0; o < c.n_out; ++o) {
    std::vector<double> values, sizes, slacks;
    for (int i = 0; i < c.n_in; ++i) {
      const test::Weight& weight = w.weights[static_cast<std::size_t>(o * c.n_in + i)];
      const test::TileWeight of_tile(c.type, weight);
      values.push_back(c.rounds_weights() ? of_tile.value : weight.scaled() + weight.offset());
      slacks.push_back(c.rounds_weights() ? of_tile.slack : 0.0);
      sizes.push_back(std::abs(weight.scaled()) + std::abs(weight.offset()));
    }
    for (int row = 0; row < c.n_rows; ++row) {
      double sum = 0.0, terms = 0.0, slack = 0.0;
      for (int i = 0; i < c.n_in; ++i) {
        const auto at = static_cast<std::size_t>(i);
        const double v = x_values[static_cast<std::size_t>(row * c.n_in + i)];
        sum += values[at] * v;
        terms += sizes[at] * std::abs(v);
        slack += slacks[at] * std::abs(v);
      }
      const double apart = std::abs(static_cast<double>(y[static_cast<std::size_t>(row * c.n_out + o)]) - sum);
      const double error = apart <= slack ? 0.0 : (apart - slack) / terms;
      worst = error <= worst ? worst : error;  // NaN stays
    }
  }
  return worst;
}

int run(bool small) {
  std::mt19937 random(static_cast<std::mt19937::result_type>(test::test_seed()));
  const Scratch scratch;
  int failed = 0, n = 0;
  for (const QuantType type : {QuantType::kQ4K, QuantType::kQ8_0, QuantType::kQ6K, QuantType::kQ5K, QuantType::kQ4_0,
                               QuantType::kMxfp4, QuantType::kBf16}) {
    for (const int n_rows : {1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 300}) {
      if (small && n_rows > 65) continue;
      const auto up_to = [&](int most) { return 1 + static_cast<int>(random() % static_cast<unsigned>(most)); };
      const int unit = matmul::cuda::chunk_form(type).inputs;
      Product c = {type, unit * up_to((small ? 1024 : 4096) / unit), up_to(small ? 200 : 600), n_rows, {}};
      if (n > 0 && random() % 2 == 0)
        c.tuning = {.most_byte_rows = 0, .least_tile_rows = 1, .n_tile_blocks = up_to(random() % 2 == 0 ? 12 : 264)};
      else if (random() % 6 == 0)
        c.tuning = {.plain = true};
      else if (random() % 3 != 0)  // few thread blocks have many tiles each
        c.tuning = {.most_byte_rows = random() % 3 == 0 ? 0 : 4,
                    .n_warps = 1 + up_to(15),
                    .n_slots = 1 + up_to(4),
                    .n_blocks = up_to(12)};
      // Five tiles for four thread blocks, of the fewest stages: each must have some of the fifth.
      if (n_rows == 64)
        c = {type,
             std::max(2 * unit, 512),
             600,
             n_rows,
             {.most_byte_rows = 0, .least_tile_rows = 1, .n_tile_blocks = 4}};
      const double error = error_of(c, scratch, random);
      const bool ok = error < kTolerance;
      std::printf(
          "%-6s type %d, %4d -> %3d, %3d rows, %d warps x %d, %2d blocks, bytes to %d, tiles from %d in %d blocks%s: "
          "error %.1e\n",
          ok ? "ok" : "FAILED", static_cast<int>(type), c.n_in, c.n_out, c.n_rows, c.tuning.n_warps, c.tuning.n_slots,
          c.tuning.n_blocks, c.tuning.most_byte_rows, c.least_tile_rows(), c.tuning.n_tile_blocks,
          c.tuning.plain ? ", plain" : "", error);
      std::fflush(stdout);
      failed += ok ? 0 : 1;
      ++n;
    }
  }
  std::printf("%d of %d products failed\n", failed, n);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_program([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
