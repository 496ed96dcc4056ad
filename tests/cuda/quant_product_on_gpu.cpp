// Products of packed weights on the GPU against the weights read one by one, in double precision (rounded to bf16 where
// the product says so), and the same through a gated unit; run twice, they must give the same bits. Prints a line a
// product; exits with 1 if an error is too large. --small: for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>

#include "cuda/run_program.h"
#include "cuda/tile_weight.h"
#include "matmul/cuda/quant_product.h"
#include "matmul/quant_weights.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using coppice::cuda::Gate;
using matmul::QuantType;

/// Relative to the sum of absolute terms, beyond what TileWeight leaves open: only sums are rounded, to f32.
constexpr double kTolerance = 2e-6;
struct Product {
  QuantType type;
  int n_in, n_out, n_rows;
  matmul::cuda::ProductTuning tuning;
  bool gated = false;
  Gate gate = Gate::kSilu;
  bool gate_biased = false, up_biased = false;
  int n_slices = 1;

  int least_tile_rows() const {
    return tuning.least_tile_rows > 0 ? tuning.least_tile_rows : matmul::cuda::least_tile_rows(n_in, n_out);
  }
  bool rounds_weights() const {
    return n_slices > 1 || (!tuning.plain && n_rows >= least_tile_rows() && n_rows > tuning.most_byte_rows);
  }
};

/// Shared by all products, as in use.
struct Scratch {
  test::DeviceBytes sums{matmul::cuda::product_scratch_sums(test::current_gpu()) * sizeof(float)};
  test::DeviceBytes flags{matmul::cuda::kProductFlags * sizeof(std::uint32_t)};
  Scratch() {
    sums.fill(0xff);
    flags.fill(0);
  }
};

/// A sum, the sum of its absolute terms, and what TileWeight leaves open.
struct Sum {
  double value = 0.0, terms = 0.0, slack = 0.0;
};

/// Weights and rows, and in double precision what they give. Of a gated product the second half of the outputs is up's.
class Numbers {
 public:
  Numbers(const Product& product, std::mt19937& random)
      : c_(product), weights_(test::random_weights(product.type, product.n_in, product.n_out, random)) {
    double squares = 0.0;
    for (const test::Weight& weight : weights_.weights) {
      const test::TileWeight of_tile(c_.type, weight);
      const double exact = weight.scaled() + weight.offset();
      values_.push_back(c_.rounds_weights() ? of_tile.value : exact);
      slacks_.push_back(c_.rounds_weights() ? of_tile.slack : 0.0);
      sizes_.push_back(std::abs(weight.scaled()) + std::abs(weight.offset()));
      squares += exact * exact;
    }
    // A gate hears sums of about 2, or it is open or shut.
    std::normal_distribution<double> normal(0.0, c_.gated ? 2.0 / std::sqrt(squares / c_.n_out) : 1.0), bias;
    for (int i = 0; i < c_.n_rows * c_.n_in; ++i) {
      x_bits_.push_back(test::to_number(Number::kBf16, static_cast<float>(normal(random))));
      x_.push_back(test::from_number(Number::kBf16, x_bits_.back()));
    }
    for (int i = 0; i < c_.n_out; ++i) biases_.push_back(static_cast<float>(bias(random)));
  }

  std::vector<std::byte> packed() const {
    if (!c_.gated) return matmul::cuda::pack(c_.type, c_.n_in, c_.n_out, weights_.bytes);
    const std::span<const std::byte> bytes = weights_.bytes;
    const std::size_t half = bytes.size() / 2;
    return matmul::cuda::pack_pairs(c_.type, c_.n_in, c_.n_out / 2, bytes.first(half), bytes.subspan(half));
  }
  const std::vector<std::uint16_t>& rows() const { return x_bits_; }
  const std::vector<float>& biases() const { return biases_; }

  double error(int row, int out, double got) const {
    const Sum sum = sum_of(row, out);
    const double apart = std::abs(got - sum.value);
    return apart <= sum.slack ? 0.0 : (apart - sum.slack) / sum.terms;
  }
  double gated_error(int row, int out, double got) const {
    Sum z = sum_of(row, out), u = sum_of(row, out + c_.n_out / 2);
    if (c_.gate_biased) add_bias(z, out);
    if (c_.up_biased) add_bias(u, out + c_.n_out / 2);
    if (c_.gate == Gate::kClamped) {
      z.value = std::min(z.value, 7.0);
      u.value = 1.0 + std::clamp(u.value, -7.0, 7.0);
    }
    const double open = opened(z.value), expected = open * u.value;
    constexpr double kSteepest = 1.13,
                     kRounding = 1.0 / 256 + 1e-5;  // of all gates; of bf16, and of the gate's own steps
    const auto moved = [&](double by_z, double by_u) {
      return kSteepest * by_z * (std::abs(u.value) + by_u) + std::abs(open) * by_u;
    };
    const double apart = std::abs(got - expected), slack = moved(z.slack, u.slack) + kRounding * std::abs(expected);
    return apart <= slack ? 0.0 : (apart - slack) / moved(z.terms, u.terms);
  }

 private:
  Sum sum_of(int row, int out) const {
    Sum sum;
    const auto n = static_cast<std::size_t>(c_.n_in), of_out = static_cast<std::size_t>(out) * n,
               of_row = static_cast<std::size_t>(row) * n;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = x_[of_row + i];
      sum.value += values_[of_out + i] * x;
      sum.terms += sizes_[of_out + i] * std::abs(x);
      sum.slack += slacks_[of_out + i] * std::abs(x);
    }
    return sum;
  }
  void add_bias(Sum& sum, int out) const {
    sum.value += biases_[static_cast<std::size_t>(out)];
    sum.terms += std::abs(biases_[static_cast<std::size_t>(out)]);
  }
  double opened(double z) const {
    if (c_.gate == Gate::kGelu) return 0.5 * z * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z * z * z)));
    return z / (1.0 + std::exp(c_.gate == Gate::kClamped ? -1.702 * z : -z));
  }

  const Product& c_;
  test::QuantWeights weights_;
  std::vector<double> values_, slacks_, sizes_, x_;
  std::vector<std::uint16_t> x_bits_;
  std::vector<float> biases_;
};

/// What the GPU gives, row by row; empty if it gave other bits the second time.
std::vector<double> launched(const Product& c, const Numbers& numbers, const Scratch& scratch) {
  const test::DeviceBytes weights(numbers.packed()), rows(numbers.rows()), biases(numbers.biases());
  const std::size_t n = static_cast<std::size_t>(c.n_rows * c.n_out) / (c.gated ? 2 : 1);
  std::vector<std::byte> first(n * (c.gated ? 2 : 4) * static_cast<std::size_t>(c.n_slices)), again = first;
  const test::DeviceBytes out(first.size());
  matmul::cuda::QuantProduct product = {.type = c.type,
                                        .n_in = c.n_in,
                                        .n_out = c.n_out,
                                        .n_rows = c.n_rows,
                                        .weights = weights.as<std::byte>(),
                                        .x = rows.as<void>(),
                                        .scratch = {scratch.sums.as<float>(), scratch.flags.as<std::uint32_t>()},
                                        .n_slices = c.n_slices};
  if (c.gated) {
    product.gated = {.gate = c.gate,
                     .gate_bias = c.gate_biased ? biases.as<float>() : nullptr,
                     .up_bias = c.up_biased ? biases.as<float>() + c.n_out / 2 : nullptr,
                     .out = out.as<void>()};
  } else {
    product.y = out.as<float>();
  }
  for (std::vector<std::byte>* to : {&first, &again}) {
    out.fill(0xff);
    if (const char* error = matmul::cuda::launch_quant_product(product, test::current_gpu(), c.tuning))
      throw std::runtime_error(error);
    test::check_cuda(cudaDeviceSynchronize(), "product");
    test::check_cuda(cudaMemcpy(to->data(), out.as<void>(), to->size(), cudaMemcpyDeviceToHost), "copy");
  }
  if (first != again) return {};
  std::vector<double> got(n);
  for (std::size_t i = 0; i < n * static_cast<std::size_t>(c.n_slices); ++i) {
    if (c.gated) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, &first[2 * i], sizeof bits);
      got[i] = test::from_number(Number::kBf16, bits);
    } else {
      float number = 0.0F;
      std::memcpy(&number, &first[4 * i], sizeof number);
      got[i % n] += number;
    }
  }
  return got;
}

/// The largest error (kTolerance), or infinity if the second run gave other bits.
double error_of(const Product& c, const Scratch& scratch, std::mt19937& random) {
  const Numbers numbers(c, random);
  const std::vector<double> got = launched(c, numbers, scratch);
  if (got.empty()) return INFINITY;
  double worst = 0.0;
  const int n = c.gated ? c.n_out / 2 : c.n_out;
  for (int row = 0; row < c.n_rows; ++row) {
    for (int out = 0; out < n; ++out) {
      const double y = got[static_cast<std::size_t>(row * n + out)];
      const double error = c.gated ? numbers.gated_error(row, out, y) : numbers.error(row, out, y);
      worst = error <= worst ? worst : error;  // NaN stays
    }
  }
  return worst;
}

bool check(const Product& c, const Scratch& scratch, std::mt19937& random) {
  const double error = error_of(c, scratch, random);
  const bool ok = error < kTolerance;
  std::printf(
      "%-6s type %d, %4d -> %3d, %3d rows, %d warps x %d, %2d blocks, bytes to %d, tiles from %d in %d blocks%s: "
      "error %.1e",
      ok ? "ok" : "FAILED", static_cast<int>(c.type), c.n_in, c.n_out, c.n_rows, c.tuning.n_warps, c.tuning.n_slots,
      c.tuning.n_blocks, c.tuning.most_byte_rows, c.least_tile_rows(), c.tuning.n_tile_blocks,
      c.tuning.plain ? ", plain" : "", error);
  if (c.gated) {
    std::printf(", gate %d%s%s", static_cast<int>(c.gate), c.gate_biased ? ", biased" : "",
                c.up_biased ? ", up biased" : "");
  }
  std::printf("\n");
  std::fflush(stdout);
  return ok;
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
      // Slices that don't come out even; the last tile has few outputs.
      if (n_rows == 17 || n_rows == 33)
        c = {type, std::max(2 * unit, 1280), 600, n_rows, {}, false, Gate::kSilu, false, false, 2 + up_to(3)};
      failed += check(c, scratch, random) ? 0 : 1;
      c.gated = true;
      c.n_slices = 1;
      c.n_out = (c.n_out + 15) / 16 * 16;
      c.gate = static_cast<Gate>(random() % 3);
      c.gate_biased = random() % 2 == 0;
      c.up_biased = random() % 2 == 0;
      failed += check(c, scratch, random) ? 0 : 1;
      n += 2;
    }
  }
  std::printf("%d of %d products failed\n", failed, n);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_on_each_gpu([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
