// What a step does with queries, keys, values and heads on the GPU (head_operators.cu), against plain double precision,
// on random shapes. Prints a line a case; exits with 1 if an error is too large. --small: for compute-sanitizer.
// COPPICE_SEED=n replays a run.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "attention/cuda/block_order.h"
#include "attention/kv_format.h"
#include "cuda/gpu_run.h"
#include "cuda/run_program.h"
#include "executor/cuda/operators.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using test::DeviceBytes;
using test::GpuRun;
using test::inverse_rms;
using test::kBf16;
using test::poisoned;
using test::read;
using test::read_bf16;
using test::worst;

constexpr int kBlockSize = 32;

template <class Args>
void launch(const Args& args) {
  test::finish(executor::cuda::launch(args, test::current_gpu()));
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
  bool halves, norms, whole_norms, bytes, biases, axes;
  float magnitude;
  executor::cuda::Temperature temperature;
};

struct HeadsInput {
  std::vector<float> qkv, bias, q_norm, k_norm, frequencies;  ///< bias: of all heads
  std::vector<std::uint8_t> axes;                             ///< [n_turned / 2]
  std::vector<std::int32_t> positions, slots;                 ///< positions: of each row one number, or with axes three
};

/// Of a row (of queries, keys, values) heads [first, first + n), with their biases.
std::vector<double> given_heads(const HeadsCase& c, const HeadsInput& in, int row, int first, int n) {
  const auto begin = in.qkv.begin() + ((row * (c.n_head + 2 * c.n_kv_head)) + first) * c.dim;
  std::vector<double> x(begin, begin + n * c.dim);
  for (std::size_t i = 0; i < x.size() && c.biases; ++i) x[i] += in.bias[static_cast<std::size_t>(first * c.dim) + i];
  return x;
}

/// Head `h` of a row as attention shall see it.
std::vector<double> expected_head(const HeadsCase& c, const HeadsInput& in, int row, int h) {
  const auto dim = static_cast<std::size_t>(c.dim);
  std::vector<double> x = given_heads(c, in, row, h, 1);
  if (h < c.n_head + c.n_kv_head) {
    if (c.norms) {
      const bool is_q = h < c.n_head;
      const int first = is_q ? 0 : c.n_head;
      const std::vector<double> all = c.whole_norms ? given_heads(c, in, row, first, is_q ? c.n_head : c.n_kv_head) : x;
      const double by = inverse_rms(all.data(), static_cast<int>(all.size()), 1e-6);
      const float* weights = (is_q ? in.q_norm : in.k_norm).data() + (c.whole_norms ? (h - first) * c.dim : 0);
      for (std::size_t i = 0; i < dim; ++i) x[i] *= by * weights[i];
    }
    for (std::size_t i = 0; i < in.frequencies.size(); ++i) {
      const int position = in.positions[static_cast<std::size_t>(c.axes ? 3 * row + in.axes[i] : row)];
      const double angle = position * static_cast<double>(in.frequencies[i]);
      const std::size_t u = c.halves ? i : 2 * i, v = c.halves ? i + in.frequencies.size() : 2 * i + 1;
      const double a = x[u], b = x[v];
      x[u] = c.magnitude * (a * std::cos(angle) - b * std::sin(angle));
      x[v] = c.magnitude * (a * std::sin(angle) + b * std::cos(angle));
    }
  }
  if (h < c.n_head && c.temperature.scale > 0) {
    const int steps =
        (in.positions[static_cast<std::size_t>(c.axes ? 3 * row : row)] + c.temperature.offset) / c.temperature.length;
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
                 .norms = run.up_to(3) > 1,
                 .whole_norms = run.coin(),
                 .bytes = run.coin(),
                 .biases = run.coin(),
                 .axes = run.coin(),
                 .magnitude = run.coin() ? 1.0F : 1.25F,
                 .temperature = {.scale = run.coin() ? 0.1F : 0.0F, .length = 8192, .offset = run.up_to(2) - 1}};
  c.n_head = c.n_kv_head * run.up_to(4);  // thread blocks of queries only, of both, of keys and values
  c.n_turned = run.coin() ? dim : dim / 2;
  const int n_heads = c.n_head + 2 * c.n_kv_head;
  HeadsInput in = {.qkv = run.normals(c.n_rows * n_heads * dim),
                   .bias = run.normals(n_heads * dim),
                   .q_norm = run.normals(c.n_head * dim),
                   .k_norm = run.normals(c.n_kv_head * dim)};
  for (int i = 0; i < c.n_turned / 2; ++i) {
    in.frequencies.push_back(static_cast<float>(std::pow(10000.0, -2.0 * i / c.n_turned)));
    in.axes.push_back(static_cast<std::uint8_t>(run.up_to(3) - 1));
  }
  for (int row = 0; row < c.n_rows; ++row) {
    for (int i = 0; i < (c.axes ? 3 : 1); ++i) in.positions.push_back(run.up_to(200000) - 1);
    in.slots.push_back(row == 2 ? -1 : row * 28 + run.up_to(28) - 1);
  }
  const std::size_t block_bytes =
      static_cast<std::size_t>(c.n_kv_head) *
      (c.bytes ? attention::cuda::byte_head_bytes(dim, kBlockSize) : static_cast<std::size_t>(kBlockSize * dim * 2));
  const std::size_t pool_bytes = 10 * block_bytes, n_queries = static_cast<std::size_t>(c.n_rows * c.n_head * dim);
  const int n_q = c.n_head * dim, n_kv = c.n_kv_head * dim;  // of a row
  const DeviceBytes qkv(in.qkv), bias(in.bias), q_norm(in.q_norm), k_norm(in.k_norm), frequencies(in.frequencies),
      axes(in.axes), positions(in.positions), slots(in.slots), q = poisoned<std::byte>(n_queries * 2),
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
                                   .whole_norms = c.norms && c.whole_norms,
                                   .eps = 1e-6F,
                                   .n_turned = c.n_turned,
                                   .halves = c.halves,
                                   .frequencies = frequencies.as<float>(),
                                   .axes = c.axes ? axes.as<std::uint8_t>() : nullptr,
                                   .magnitude = c.magnitude,
                                   .temperature = c.temperature,
                                   .position_size = c.axes ? 3 : 1,
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
                           (c.norms ? c.whole_norms ? ", whole norms" : ", norms" : "") +
                           (c.axes ? ", positions of three parts" : "") + (c.bytes ? ", bytes" : "");
  run.report(what + ", queries", worst(read_bf16(q, n_queries), expected_q, 1e-2), kBf16);
  run.report(what + ", pool (rounding is 1)", in_pool, 1.0);
  if (!c.bytes) return;
  launch(executor::cuda::RotateBack{c.n_rows * c.n_head, dim, q.as<void>()});
  run.report(what + ", turned back", worst(read_bf16(q, n_queries), plain_q, 4.0), 2 * kBf16);
}

/// Of each value or of each head, behind other numbers of the same product.
void check_gates(GpuRun& run) {
  const int dim = std::array{64, 80, 96, 128, 256}[static_cast<std::size_t>(run.up_to(5) - 1)];
  const int n_head = run.up_to(40), n = n_head * dim, n_rows = run.up_to(9);
  const bool of_heads = run.coin(), biased = run.coin();
  const int n_gates = of_heads ? n_head : n, before = 16 * run.up_to(9), stride = before + n_gates;
  const std::vector<float> product = run.normals(n_rows * stride, 2.0F), bias = run.normals(n_gates);
  std::vector<std::uint16_t> heads;
  std::vector<double> expected;
  for (const float x : run.normals(n_rows * n)) {
    const auto at = static_cast<int>(heads.size()), row = at / n, gate = at % n / (n / n_gates);
    heads.push_back(test::to_number(Number::kBf16, x));
    const double z = product[static_cast<std::size_t>(row * stride + before + gate)] +
                     (biased ? double{bias[static_cast<std::size_t>(gate)]} : 0.0);
    expected.push_back(test::from_number(Number::kBf16, heads.back()) / (1.0 + std::exp(-z)));
  }
  const DeviceBytes device_product(product), device_bias(bias), device_heads(heads);
  launch(executor::cuda::GateHeads{.n = n,
                                   .n_rows = n_rows,
                                   .n_gates = n_gates,
                                   .gates = {device_product.as<float>() + before, stride},
                                   .bias = biased ? device_bias.as<float>() : nullptr,
                                   .heads = device_heads.as<void>()});
  run.report(std::to_string(n_gates) + " gates of " + std::to_string(n_head) + " heads of " + std::to_string(dim) +
                 (biased ? ", bias" : ""),
             worst(read_bf16(device_heads, expected.size()), expected, 1e-3), kBf16);
}

int run(bool small) {
  GpuRun run(test::test_seed());
  for (int i = 0; i < (small ? 2 : 12); ++i) {
    for (const int dim : {64, 80, 96, 128, 256}) check_heads(dim, run);
  }
  for (int i = 0; i < (small ? 3 : 12); ++i) check_gates(run);
  return run.end();
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_on_each_gpu([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
