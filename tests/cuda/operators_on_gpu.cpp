// A step's operators on the GPU against plain double precision, on random shapes. Prints a line a case; exits with 1 if an error is too
// large. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "attention/cuda/block_order.h"
#include "attention/kv_format.h"
#include "cuda/gpu_run.h"
#include "cuda/run_program.h"
#include "executor/cuda/operators.h"
#include "matmul/cuda/quant_pack.h"
#include "matmul/quant_weights.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using matmul::QuantType;
using test::DeviceBytes;
using test::GpuRun;
using test::poisoned;
using test::read;

constexpr double kBf16 = 1.0 / 256;  ///< relative to a number: half a last place, and a little
constexpr int kBlockSize = 32;

template <class Args>
void launch(const Args& args) {
  test::finish(executor::cuda::launch(args, nullptr));
}

std::vector<double> read_bf16(const DeviceBytes& from, std::size_t n) {
  std::vector<double> to;
  for (const std::uint16_t bits : read<std::uint16_t>(from, n)) to.push_back(test::from_number(Number::kBf16, bits));
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

void check_embeddings(QuantType type, GpuRun& run) {
  const int n = 256 * run.up_to(6), n_vocab = run.up_to(100), n_rows = run.up_to(20);
  const test::QuantWeights w = test::random_weights(type, n, n_vocab, run.random);
  std::vector<std::int32_t> tokens;
  std::vector<double> expected;
  const float scale = run.coin() ? 1.0F : 5.25F;
  for (int row = 0; row < n_rows; ++row) {
    tokens.push_back(run.up_to(n_vocab) - 1);
    for (int i = 0; i < n; ++i) {
      const test::Weight& weight = w.weights[static_cast<std::size_t>(tokens.back() * n + i)];
      expected.push_back(scale * (weight.scaled() + weight.offset()));
    }
  }
  // Some are what the step before drew.
  std::vector<std::int32_t> last(tokens);
  for (int row = 0; row < n_rows; ++row) {
    if (run.coin()) tokens[static_cast<std::size_t>(row)] = -1 - row;
  }
  const DeviceBytes packed(matmul::cuda::pack(type, n, n_vocab, w.bytes)), device_tokens(tokens), drawn(last),
      out = poisoned<std::byte>(expected.size() * 4);
  launch(executor::cuda::EmbedRows{type, n, n_rows, packed.as<std::byte>(), device_tokens.as<std::int32_t>(),
                                   drawn.as<std::int32_t>(), scale, out.as<float>()});
  run.report("embeddings of type " + std::to_string(static_cast<int>(type)),
             worst(read<float>(out, expected.size()), expected, 1.0), 1e-6);
}

double inverse_rms(const double* x, int n, double eps) {
  double squares = 0.0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  return 1.0 / std::sqrt(squares / n + eps);
}

void check_norm(GpuRun& run) {
  const bool many = run.coin();  // rows: they get fewer threads each
  const int n = run.coin() || many ? 4 * run.up_to(1024) : 4 * run.up_to(4096),
            n_rows = run.up_to(6) + (many ? 512 : 0);
  const bool norms = run.up_to(4) > 1, adds = run.coin(), norms_plus = adds && run.coin(), biased = adds && run.coin();
  const float plus_scale = run.coin() ? 1.0F : 0.4F;
  const float eps = 1e-5F;
  const std::vector<float> residual = run.normals(n * n_rows, 3.0F), plus = run.normals(n * n_rows),
                           weights = run.normals(n), plus_weights = run.normals(n), bias = run.normals(n);
  std::vector<double> sums(residual.begin(), residual.end()), expected;
  for (int row = 0; row < n_rows; ++row) {
    double* sum = sums.data() + row * n;
    std::vector<double> y(plus.begin() + row * n, plus.begin() + (row + 1) * n);
    for (std::size_t i = 0; i < y.size() && biased; ++i) y[i] += bias[i];
    const double by_plus = norms_plus ? inverse_rms(y.data(), n, eps) : 1.0;
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
                                 .plus_scale = plus_scale,
                                 .norm = norms ? device_weights.as<float>() : nullptr,
                                 .eps = eps,
                                 .out = out.as<void>()});
  const std::string what = (norms ? "norm of " : "no norm of ") + std::to_string(n) + (adds ? ", added" : "") +
                           (biased ? " with bias" : "") + (norms_plus ? " normalised" : "");
  run.report(what, worst(read_bf16(out, expected.size()), expected, 1e-3), kBf16);
  run.report(what + ", residual", worst(read<float>(device_residual, sums.size()), sums, 1.0), 1e-5);
}

/// Of some rows, in another order and one twice: they are read, and the residual stays as it is.
void check_norm_of_some(GpuRun& run) {
  const int n = 4 * run.up_to(1024), n_rows = 7;
  const std::vector<std::int32_t> rows = {5, 0, 3, 5};
  const std::vector<float> residual = run.normals(n * n_rows, 3.0F), plus = run.normals(n * n_rows),
                           weights = run.normals(n);
  std::vector<double> expected;
  for (const std::int32_t row : rows) {
    std::vector<double> sum;
    for (int i = row * n; i < (row + 1) * n; ++i)
      sum.push_back(static_cast<double>(residual[static_cast<std::size_t>(i)]) + plus[static_cast<std::size_t>(i)]);
    const double by = inverse_rms(sum.data(), n, 1e-5);
    for (int i = 0; i < n; ++i)
      expected.push_back(sum[static_cast<std::size_t>(i)] * by * weights[static_cast<std::size_t>(i)]);
  }
  const DeviceBytes device_residual(residual), device_plus(plus), device_weights(weights), device_rows(rows),
      out = poisoned<std::byte>(expected.size() * 2);
  launch(executor::cuda::AddNorm{.n = n,
                                 .n_rows = 4,
                                 .residual = device_residual.as<float>(),
                                 .plus = device_plus.as<float>(),
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
  const bool gate_biased = run.coin(), up_biased = run.coin();
  const std::vector<float> x = run.normals(2 * n * n_rows, 4.0F), bias = run.normals(2 * n_parts * n);
  std::vector<std::int32_t> parts;
  std::vector<double> expected;
  for (int row = 0; row < n_rows; ++row) {
    parts.push_back(run.up_to(n_parts) - 1);
    for (int i = 0; i < n; ++i) {
      const auto of_bias = static_cast<std::size_t>(parts.back() * n + i);
      const double z = x[static_cast<std::size_t>(row * 2 * n + i)] + (gate_biased ? bias[of_bias] : 0.0),
                   u = x[static_cast<std::size_t>(row * 2 * n + n + i)] +
                       (up_biased ? bias[static_cast<std::size_t>(n_parts * n) + of_bias] : 0.0);
      expected.push_back(gated(gate, z, u));
    }
  }
  const DeviceBytes device_x(x), device_bias(bias), device_parts(parts), out = poisoned<std::byte>(expected.size() * 2);
  launch(executor::cuda::GateRows{.gate = gate,
                                  .n = n,
                                  .n_rows = n_rows,
                                  .from_gate = {device_x.as<float>(), 2 * n},
                                  .from_up = {device_x.as<float>() + n, 2 * n},
                                  .gate_bias = gate_biased ? device_bias.as<float>() : nullptr,
                                  .up_bias = up_biased ? device_bias.as<float>() + n_parts * n : nullptr,
                                  .parts = n_parts > 1 ? device_parts.as<std::int32_t>() : nullptr,
                                  .out = out.as<void>()});
  run.report("gate " + std::to_string(static_cast<int>(gate)) + " of " + std::to_string(n) +
                 (gate_biased || up_biased ? ", biases of " + std::to_string(n_parts) : ""),
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

/// kv_format.h's rotation by its definition: signs, then matrices of +-1.
std::vector<double> rotated(const std::vector<double>& head) {
  std::vector<double> out(head.size());
  for (std::size_t first = 0; first < head.size();) {
    const std::size_t n = std::bit_floor(head.size() - first);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        const double value = head[first + j] * attention::rotation_sign(static_cast<int>(first + j));
        out[first + i] += (std::popcount(i & j) % 2 == 0 ? value : -value) / std::sqrt(static_cast<double>(n));
      }
    }
    first += n;
  }
  return out;
}

struct HeadsCase {
  int dim, n_head, n_kv_head, n_rows, n_turned, n_blocks;
  bool halves, norms, bytes, biases;
  float magnitude;
  executor::cuda::Temperature temperature;
};

struct HeadsInput {
  std::vector<float> qkv, bias, q_norm, k_norm, frequencies;  ///< bias: of all heads
  std::vector<std::int32_t> positions, slots;
};

/// Head `h` of a row (of queries, keys, values) as attention shall see it.
std::vector<double> expected_head(const HeadsCase& c, const HeadsInput& in, int row, int h) {
  const auto dim = static_cast<std::size_t>(c.dim);
  const auto begin = in.qkv.begin() + ((row * (c.n_head + 2 * c.n_kv_head)) + h) * c.dim;
  std::vector<double> x(begin, begin + c.dim);
  for (std::size_t i = 0; i < dim && c.biases; ++i) x[i] += in.bias[static_cast<std::size_t>(h) * dim + i];
  if (h < c.n_head + c.n_kv_head) {
    if (c.norms) {
      const double by = inverse_rms(x.data(), c.dim, 1e-6);
      for (std::size_t i = 0; i < dim; ++i) x[i] *= by * (h < c.n_head ? in.q_norm : in.k_norm)[i];
    }
    for (std::size_t i = 0; i < in.frequencies.size(); ++i) {
      const double angle = in.positions[static_cast<std::size_t>(row)] * static_cast<double>(in.frequencies[i]);
      const std::size_t u = c.halves ? i : 2 * i, v = c.halves ? i + in.frequencies.size() : 2 * i + 1;
      const double a = x[u], b = x[v];
      x[u] = c.magnitude * (a * std::cos(angle) - b * std::sin(angle));
      x[v] = c.magnitude * (a * std::sin(angle) + b * std::cos(angle));
    }
  }
  if (h < c.n_head && c.temperature.scale > 0) {
    const int steps = (in.positions[static_cast<std::size_t>(row)] + c.temperature.offset) / c.temperature.length;
    for (double& v : x) v *= 1.0 + c.temperature.scale * std::log1p(steps);
  }
  return c.bytes ? rotated(x) : x;
}

/// Of a head in the pool: the largest error in units of what rounding may do.
double pool_error(const HeadsCase& c, const std::vector<std::byte>& pool, std::size_t block_bytes, int slot,
                  int kv_head, const std::vector<double>& expected) {
  const std::size_t of_head =
      c.bytes ? attention::cuda::byte_head_bytes(c.dim, kBlockSize) : static_cast<std::size_t>(kBlockSize * c.dim * 2);
  const std::byte* head = pool.data() + static_cast<std::size_t>(slot / kBlockSize) * block_bytes +
                          static_cast<std::size_t>(kv_head) * of_head;
  const int in_block = slot % kBlockSize;
  _Float16 scale = 0;
  if (c.bytes) std::memcpy(&scale, head + kBlockSize * c.dim + 2 * in_block, 2);
  double most = 0.0;
  for (int i = 0; i < c.dim; ++i) {
    const double e = expected[static_cast<std::size_t>(i)];
    double error = 0.0;
    if (c.bytes) {
      const double got = static_cast<double>(scale) * std::to_integer<std::int8_t>(head[in_block * c.dim + i]);
      error = std::abs(got - e) / (0.51 * static_cast<double>(scale) + 1e-3 * std::abs(e) + 1e-9);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, head + attention::cuda::offset_in_head(c.dim, kBlockSize, in_block, i), 2);
      error = std::abs(test::from_number(Number::kBf16, bits) - e) / (kBf16 * (std::abs(e) + 1e-2));
    }
    most = error <= most ? most : error;
  }
  return most;
}

void check_heads(int dim, GpuRun& run) {
  HeadsCase c = {.dim = dim,
                 .n_kv_head = run.up_to(4),
                 .n_rows = run.up_to(9),
                 .n_blocks = 8,
                 .halves = run.coin(),
                 .norms = run.coin(),
                 .bytes = run.coin(),
                 .biases = run.coin(),
                 .magnitude = run.coin() ? 1.0F : 1.25F,
                 .temperature = {.scale = run.coin() ? 0.1F : 0.0F, .length = 8192, .offset = run.up_to(2) - 1}};
  c.n_head = c.n_kv_head * run.up_to(4);
  c.n_turned = run.coin() ? dim : dim / 2;
  const int n_heads = c.n_head + 2 * c.n_kv_head;
  HeadsInput in = {.qkv = run.normals(c.n_rows * n_heads * dim),
                   .bias = run.normals(n_heads * dim),
                   .q_norm = run.normals(dim),
                   .k_norm = run.normals(dim)};
  for (int i = 0; i < c.n_turned / 2; ++i)
    in.frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.n_turned)));
  for (int row = 0; row < c.n_rows; ++row) {
    in.positions.push_back(run.up_to(200000) - 1);
    in.slots.push_back(row == 2 ? -1 : row * 28 + run.up_to(28) - 1);
  }
  const std::size_t block_bytes =
      static_cast<std::size_t>(c.n_kv_head) *
      (c.bytes ? attention::cuda::byte_head_bytes(dim, kBlockSize) : static_cast<std::size_t>(kBlockSize * dim * 2));
  const std::size_t pool_bytes = 10 * block_bytes, n_queries = static_cast<std::size_t>(c.n_rows * c.n_head * dim);
  const int n_q = c.n_head * dim, n_kv = c.n_kv_head * dim;  // of a row
  const DeviceBytes qkv(in.qkv), bias(in.bias), q_norm(in.q_norm), k_norm(in.k_norm), frequencies(in.frequencies),
      positions(in.positions), slots(in.slots), q = poisoned<std::byte>(n_queries * 2),
                                                keys = poisoned<std::byte>(pool_bytes),
                                                values = poisoned<std::byte>(pool_bytes);
  launch(executor::cuda::EnterRows{.n_rows = c.n_rows,
                                   .n_head = c.n_head,
                                   .n_kv_head = c.n_kv_head,
                                   .head_dim = dim,
                                   .from_q = {qkv.as<float>(), n_heads * dim},
                                   .from_k = {qkv.as<float>() + n_q, n_heads * dim},
                                   .from_v = {qkv.as<float>() + n_q + n_kv, n_heads * dim},
                                   .q_bias = c.biases ? bias.as<float>() : nullptr,
                                   .k_bias = c.biases ? bias.as<float>() + n_q : nullptr,
                                   .v_bias = c.biases ? bias.as<float>() + n_q + n_kv : nullptr,
                                   .q_norm = c.norms ? q_norm.as<float>() : nullptr,
                                   .k_norm = c.norms ? k_norm.as<float>() : nullptr,
                                   .eps = 1e-6F,
                                   .n_turned = c.n_turned,
                                   .halves = c.halves,
                                   .frequencies = frequencies.as<float>(),
                                   .magnitude = c.magnitude,
                                   .temperature = c.temperature,
                                   .positions = positions.as<std::int32_t>(),
                                   .slots = slots.as<std::int32_t>(),
                                   .q = q.as<void>(),
                                   .bytes = c.bytes,
                                   .keys = keys.as<std::byte>(),
                                   .values = values.as<std::byte>(),
                                   .block_bytes = static_cast<std::int64_t>(block_bytes)});
  std::vector<double> expected_q, plain_q;
  double in_pool = 0.0;
  const std::vector<std::byte> key_pool = read<std::byte>(keys, pool_bytes),
                               value_pool = read<std::byte>(values, pool_bytes);
  for (int row = 0; row < c.n_rows; ++row) {
    for (int h = 0; h < n_heads; ++h) {
      const std::vector<double> expected = expected_head(c, in, row, h);
      if (h < c.n_head) {
        expected_q.insert(expected_q.end(), expected.begin(), expected.end());
      } else if (in.slots[static_cast<std::size_t>(row)] >= 0) {
        const bool is_value = h >= c.n_head + c.n_kv_head;
        const double error =
            pool_error(c, is_value ? value_pool : key_pool, block_bytes, in.slots[static_cast<std::size_t>(row)],
                       (h - c.n_head) % c.n_kv_head, expected);
        in_pool = error <= in_pool ? in_pool : error;
      }
      if (h < c.n_head && c.bytes) {
        HeadsCase plain = c;
        plain.bytes = false;
        const std::vector<double> before = expected_head(plain, in, row, h);
        plain_q.insert(plain_q.end(), before.begin(), before.end());
      }
    }
  }
  const std::string what = "heads of " + std::to_string(dim) + (c.halves ? ", halves" : ", neighbours") +
                           (c.norms ? ", norms" : "") + (c.bytes ? ", bytes" : "");
  run.report(what + ", queries", worst(read_bf16(q, n_queries), expected_q, 1e-2), kBf16);
  run.report(what + ", pool (rounding is 1)", in_pool, 1.0);
  if (!c.bytes) return;
  launch(executor::cuda::RotateBack{c.n_rows * c.n_head, dim, q.as<void>()});
  run.report(what + ", turned back", worst(read_bf16(q, n_queries), plain_q, 4.0), 2 * kBf16);
}

int run() {
  GpuRun run(test::test_seed());
  for (int i = 0; i < 3; ++i) {
    for (const QuantType type : {QuantType::kBf16, QuantType::kQ8_0, QuantType::kQ4_0, QuantType::kQ4K, QuantType::kQ5K,
                                 QuantType::kQ6K, QuantType::kMxfp4})
      check_embeddings(type, run);
  }
  for (int i = 0; i < 16; ++i) check_norm(run);
  for (int i = 0; i < 3; ++i) check_norm_of_some(run);
  for (int i = 0; i < 12; ++i) check_gate(run);
  for (int i = 0; i < 6; ++i) check_logits(run);
  for (int i = 0; i < 8; ++i) {
    for (const int dim : {64, 80, 96, 128, 256}) check_heads(dim, run);
  }
  return run.end();
}

}  // namespace
}  // namespace coppice

int main() {
  return coppice::test::run_program(coppice::run);
}
