// A step's operators on rows on the GPU (row_operators.cu) against plain double precision, on random shapes. Prints a
// line a case; exits with 1 if an error is too large. --small: for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <string>

#include "cuda/gpu_run.h"
#include "cuda/run_program.h"
#include "executor/cuda/bf16.h"
#include "executor/cuda/operators.h"
#include "matmul/cuda/quant_pack.h"
#include "matmul/quant_weights.h"

namespace coppice {
namespace {

using matmul::QuantType;
using test::DeviceBytes;
using test::GpuRun;
using test::inverse_rms;
using test::kBf16;
using test::poisoned;
using test::read;
using test::read_bf16;
using test::worst;

template <class Args>
void launch(const Args& args) {
  test::finish(executor::cuda::launch(args, test::current_gpu()));
}

std::vector<std::uint16_t> bf16_numbers(int n, GpuRun& run) {
  std::vector<std::uint16_t> all;
  for (const float x : run.normals(n)) all.push_back(executor::cuda::to_bf16(x));
  return all;
}

double number(const std::vector<std::uint16_t>& bf16, int i) {
  return std::bit_cast<float>(std::uint32_t{bf16[static_cast<std::size_t>(i)]} << 16);
}

void check_planes(GpuRun& run) {
  const int n = 4 * run.up_to(600), n_rows = run.up_to(20), n_given = run.up_to(4), stride = 2 * n;
  const std::vector<std::uint16_t> given = bf16_numbers(n_given * stride, run);
  const std::vector<float> residual = run.normals(n_rows * n, 3.0F);
  std::vector<double> expected(residual.begin(), residual.end());
  std::vector<std::int32_t> rows;
  for (int row = 0; row < n_rows; ++row) {
    const int kind = run.up_to(3), i = run.up_to(n_given) - 1;
    rows.push_back(kind == 1 ? row : kind == 2 ? -1 - row : executor::cuda::kGivenRow + i);
    for (int k = 0; kind == 3 && k < n; ++k) {
      expected[static_cast<std::size_t>(row * n + k)] += number(given, i * stride + n + k);
    }
  }
  const DeviceBytes device_rows(rows), device_given(given), out(residual);
  launch(executor::cuda::AddPlane{.n = n,
                                  .n_rows = n_rows,
                                  .rows = device_rows.as<std::int32_t>(),
                                  .plane = device_given.as<std::uint16_t>() + n,
                                  .stride = stride,
                                  .residual = out.as<float>()});
  run.report("planes of " + std::to_string(n), worst(read<float>(out, expected.size()), expected, 1.0), 1e-6);
}

void check_embeddings(QuantType type, GpuRun& run) {
  const int n = 256 * run.up_to(6), n_vocab = run.up_to(100), n_rows = run.up_to(20);
  const test::QuantWeights w = test::random_weights(type, n, n_vocab, run.random);
  std::vector<std::int32_t> tokens;
  std::vector<double> expected;
  const float scale = run.coin() ? 1.0F : 5.25F, eps = 1e-5F;
  const bool norms = run.up_to(3) == 1;
  const std::vector<float> norm = run.normals(n);
  for (int row = 0; row < n_rows; ++row) {
    tokens.push_back(run.up_to(n_vocab) - 1);
    for (int i = 0; i < n; ++i) {
      const test::Weight& weight = w.weights[static_cast<std::size_t>(tokens.back() * n + i)];
      expected.push_back(scale * (weight.scaled() + weight.offset()));
    }
    if (!norms) continue;
    double* x = expected.data() + row * n;
    const double by = inverse_rms(x, n, eps);
    for (int i = 0; i < n; ++i) x[i] *= by * norm[static_cast<std::size_t>(i)];
  }
  // Some are what the step before drew, and some are given.
  const int n_given = run.up_to(4), stride = n * run.up_to(3);
  const std::vector<std::uint16_t> given = bf16_numbers(n_given * stride, run);
  std::vector<std::int32_t> last(tokens);
  for (int row = 0; row < n_rows; ++row) {
    const int kind = run.up_to(3), i = run.up_to(n_given) - 1;
    if (kind == 2) tokens[static_cast<std::size_t>(row)] = -1 - row;
    if (kind != 3) continue;
    tokens[static_cast<std::size_t>(row)] = executor::cuda::kGivenRow + i;
    for (int k = 0; k < n; ++k) expected[static_cast<std::size_t>(row * n + k)] = number(given, i * stride + k);
  }
  const DeviceBytes packed(matmul::cuda::pack(type, n, n_vocab, w.bytes)), rows(tokens), drawn(last), device_norm(norm),
      device_given(given), out = poisoned<std::byte>(expected.size() * 4);
  launch(executor::cuda::EmbedRows{.type = type,
                                   .n = n,
                                   .n_rows = n_rows,
                                   .embeddings = packed.as<std::byte>(),
                                   .rows = rows.as<std::int32_t>(),
                                   .drawn = drawn.as<std::int32_t>(),
                                   .scale = scale,
                                   .norm = norms ? device_norm.as<float>() : nullptr,
                                   .eps = eps,
                                   .given = device_given.as<void>(),
                                   .given_stride = stride,
                                   .residual = out.as<float>()});
  run.report("embeddings of type " + std::to_string(static_cast<int>(type)) + (norms ? ", normalised" : ""),
             worst(read<float>(out, expected.size()), expected, 1.0), 1e-6);
}

void check_norm(GpuRun& run) {
  const bool many = run.coin();  // rows: they get fewer threads each
  const int n = run.coin() || many ? 4 * run.up_to(1024) : 4 * run.up_to(4096),
            n_rows = run.up_to(6) + (many ? 512 : 0);
  const bool norms = run.up_to(4) > 1, adds = run.coin(), norms_plus = adds && run.coin(), biased = adds && run.coin();
  const float plus_scale = run.coin() ? 1.0F : 0.4F;
  const float eps = 1e-5F, plus_eps = 0.25F;
  const std::vector<float> residual = run.normals(n * n_rows, 3.0F), plus = run.normals(n * n_rows),
                           weights = run.normals(n), plus_weights = run.normals(n), bias = run.normals(n);
  std::vector<double> sums(residual.begin(), residual.end()), expected;
  for (int row = 0; row < n_rows; ++row) {
    double* sum = sums.data() + row * n;
    std::vector<double> y(plus.begin() + row * n, plus.begin() + (row + 1) * n);
    for (std::size_t i = 0; i < y.size() && biased; ++i) y[i] += bias[i];
    const double by_plus = norms_plus ? inverse_rms(y.data(), n, plus_eps) : 1.0;
    for (int i = 0; adds && i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      sum[i] += plus_scale * y[at] * by_plus * (norms_plus ? plus_weights[at] : 1.0F);
    }
    const double by = inverse_rms(sum, n, eps);
    for (int i = 0; i < n; ++i) expected.push_back(norms ? sum[i] * by * weights[static_cast<std::size_t>(i)] : sum[i]);
  }
  const DeviceBytes device_residual(residual), device_plus(plus), device_weights(weights),
      device_plus_weights(plus_weights), device_bias(bias), out = poisoned<std::byte>(expected.size() * 2);
  launch(executor::cuda::AddNorm{.n = n,
                                 .n_rows = n_rows,
                                 .residual = device_residual.as<float>(),
                                 .plus = adds ? device_plus.as<float>() : nullptr,
                                 .plus_bias = biased ? device_bias.as<float>() : nullptr,
                                 .plus_norm = norms_plus ? device_plus_weights.as<float>() : nullptr,
                                 .plus_eps = plus_eps,
                                 .plus_scale = plus_scale,
                                 .norm = norms ? device_weights.as<float>() : nullptr,
                                 .eps = eps,
                                 .out = out.as<void>()});
  const std::string what = (norms ? "norm of " : "no norm of ") + std::to_string(n) + (adds ? ", added" : "") +
                           (biased ? " with bias" : "") + (norms_plus ? " normalised" : "");
  run.report(what, worst(read_bf16(out, expected.size()), expected, 1e-3), kBf16);
  run.report(what + ", residual", worst(read<float>(device_residual, sums.size()), sums, 1.0), 1e-5);
}

/// Of some rows, in another order and one twice, with slices to add: they are read, and the residual stays as it is.
void check_norm_of_some(GpuRun& run) {
  const int n = 4 * run.up_to(1024), n_rows = 7;
  const std::vector<std::int32_t> rows = {5, 0, 3, 5};
  constexpr int kSlices = 3;
  const std::vector<float> residual = run.normals(n * n_rows, 3.0F), slices = run.normals(kSlices * n * n_rows),
                           weights = run.normals(n);
  std::vector<double> plus(residual.size()), expected;
  for (std::size_t i = 0; i < slices.size(); ++i) plus[i % plus.size()] += slices[i];
  for (const std::int32_t row : rows) {
    std::vector<double> sum;
    for (int i = row * n; i < (row + 1) * n; ++i)
      sum.push_back(static_cast<double>(residual[static_cast<std::size_t>(i)]) + plus[static_cast<std::size_t>(i)]);
    const double by = inverse_rms(sum.data(), n, 1e-5);
    for (int i = 0; i < n; ++i)
      expected.push_back(sum[static_cast<std::size_t>(i)] * by * weights[static_cast<std::size_t>(i)]);
  }
  const DeviceBytes device_residual(residual), device_plus(slices), device_weights(weights), device_rows(rows),
      out = poisoned<std::byte>(expected.size() * 2);
  launch(executor::cuda::AddNorm{.n = n,
                                 .n_rows = 4,
                                 .residual = device_residual.as<float>(),
                                 .plus = device_plus.as<float>(),
                                 .plus_slices = kSlices,
                                 .plus_stride = std::int64_t{n_rows} * n,
                                 .norm = device_weights.as<float>(),
                                 .eps = 1e-5F,
                                 .out = out.as<void>(),
                                 .rows = device_rows.as<std::int32_t>()});
  run.report("norm of some rows", worst(read_bf16(out, expected.size()), expected, 1e-3), kBf16);
  run.report("norm of some rows, residual", read<float>(device_residual, residual.size()) == residual ? 0.0 : 1.0, 0.0);
}

double gated(executor::cuda::Gate gate, double z, double u) {
  switch (gate) {
    case executor::cuda::Gate::kSilu:
      return z / (1.0 + std::exp(-z)) * u;
    case executor::cuda::Gate::kGelu:
      return 0.5 * z * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (z + 0.044715 * z * z * z))) * u;
    case executor::cuda::Gate::kClamped:
      break;
  }
  z = std::min(z, 7.0);
  return z / (1.0 + std::exp(-1.702 * z)) * (1.0 + std::clamp(u, -7.0, 7.0));
}

void check_gate(GpuRun& run) {
  const int n = 4 * run.up_to(3000), n_rows = run.up_to(6), n_parts = run.coin() ? 3 : 1;
  const auto gate = static_cast<executor::cuda::Gate>(run.up_to(3) - 1);
  const bool gate_biased = run.coin(), up_biased = run.coin(), weighted = run.coin();
  const std::vector<float> x = run.normals(2 * n * n_rows, 4.0F), bias = run.normals(2 * n_parts * n),
                           weights = run.normals(n_rows, 0.4F);
  std::vector<std::int32_t> parts, pairs(static_cast<std::size_t>(n_rows));
  std::iota(pairs.begin(), pairs.end(), 0);
  std::ranges::shuffle(pairs, run.random);
  std::vector<double> expected;
  for (int row = 0; row < n_rows; ++row) {
    parts.push_back(run.up_to(n_parts) - 1);
    const double w = weighted ? weights[static_cast<std::size_t>(pairs[static_cast<std::size_t>(row)])] : 1.0F;
    for (int i = 0; i < n; ++i) {
      const auto of_bias = static_cast<std::size_t>(parts.back() * n + i);
      const double z = w * x[static_cast<std::size_t>(row * 2 * n + i)] + (gate_biased ? bias[of_bias] : 0.0),
                   u = w * x[static_cast<std::size_t>(row * 2 * n + n + i)] +
                       (up_biased ? bias[static_cast<std::size_t>(n_parts * n) + of_bias] : 0.0);
      expected.push_back(gated(gate, z, u));
    }
  }
  const DeviceBytes device_x(x), device_bias(bias), device_parts(parts), device_weights(weights), device_pairs(pairs),
      out = poisoned<std::byte>(expected.size() * 2);
  launch(executor::cuda::GateRows{.gate = gate,
                                  .n = n,
                                  .n_rows = n_rows,
                                  .from_gate = {device_x.as<float>(), 2 * n},
                                  .from_up = {device_x.as<float>() + n, 2 * n},
                                  .weights = weighted ? device_weights.as<float>() : nullptr,
                                  .pairs = device_pairs.as<std::int32_t>(),
                                  .gate_bias = gate_biased ? device_bias.as<float>() : nullptr,
                                  .up_bias = up_biased ? device_bias.as<float>() + n_parts * n : nullptr,
                                  .parts = n_parts > 1 ? device_parts.as<std::int32_t>() : nullptr,
                                  .out = out.as<void>()});
  run.report("gate " + std::to_string(static_cast<int>(gate)) + " of " + std::to_string(n) +
                 (gate_biased || up_biased ? ", biases of " + std::to_string(n_parts) : "") +
                 (weighted ? ", weighted" : ""),
             worst(read_bf16(out, expected.size()), expected, 1e-3), kBf16);
}

void check_logits(GpuRun& run) {
  const int n = run.up_to(3000), n_rows = run.up_to(5);
  const bool biased = run.coin();
  const float scale = run.coin() ? 1.0F : 0.3F, cap = run.coin() ? 5.0F : 0.0F;
  const std::vector<float> x = run.normals(n * n_rows, 6.0F), bias = run.normals(n);
  std::vector<double> expected;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double y = scale * (x[i] + (biased ? double{bias[i % static_cast<std::size_t>(n)]} : 0.0));
    expected.push_back(cap > 0 ? cap * std::tanh(y / cap) : y);
  }
  const DeviceBytes logits(x), device_bias(bias);
  launch(executor::cuda::FinishLogits{.n = n,
                                      .n_rows = n_rows,
                                      .logits = logits.as<float>(),
                                      .bias = biased ? device_bias.as<float>() : nullptr,
                                      .scale = scale,
                                      .cap = cap});
  run.report("logits" + std::string(biased ? ", bias" : "") + (cap > 0 ? ", softcap" : ""),
             worst(read<float>(logits, expected.size()), expected, 1.0), 1e-6);
}

int run(bool small) {
  GpuRun run(test::test_seed());
  const auto times = [small](int n) { return small ? (n + 3) / 4 : n; };
  for (int i = 0; i < times(3); ++i) {
    for (const QuantType type : {QuantType::kBf16, QuantType::kQ8_0, QuantType::kQ4_0, QuantType::kQ4K, QuantType::kQ5K,
                                 QuantType::kQ6K, QuantType::kMxfp4})
      check_embeddings(type, run);
  }
  for (int i = 0; i < times(6); ++i) check_planes(run);
  for (int i = 0; i < times(16); ++i) check_norm(run);
  for (int i = 0; i < times(3); ++i) check_norm_of_some(run);
  for (int i = 0; i < times(12); ++i) check_gate(run);
  for (int i = 0; i < times(6); ++i) check_logits(run);
  return run.end();
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_on_each_gpu([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
