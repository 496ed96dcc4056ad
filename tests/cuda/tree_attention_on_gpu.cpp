// The tree kernel on the GPU against the scalar reference in double precision, on random trees and on the named steps; run
// twice, it must give the same bits. Prints a line a case and the largest errors; exits with 1 if one is too large. --small:
// few and small ones, for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>

#include "attention/reference.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using attention::cuda::TreeAttention;
using attention::cuda::TreeCost;

/// ||out - reference|| / ||reference|| over a case. Outputs are rounded to 8 or 11 bits, and so are the weights.
constexpr double kTolerance[] = {5e-3, 8e-4};

struct Worst {
  double bf16 = 0.0, f16 = 0.0;
  int failed = 0, run = 0;
};

int n_workers() {
  int n = 0;
  test::check_cuda(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0), "device");
  return n;
}

std::vector<std::byte> rounded(std::vector<std::byte> half_pool) {
  for (std::size_t i = 0; i < half_pool.size(); i += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &half_pool[i], 2);
    bits = test::both_hold(bits);
    std::memcpy(&half_pool[i], &bits, 2);
  }
  return half_pool;
}

void check(const test::AttentionCase& c, Number number, const TreeCost& cost, std::uint64_t seed, Worst& worst) {
  test::PoolData pool(c, seed);
  pool.keys = rounded(std::move(pool.keys));
  pool.values = rounded(std::move(pool.values));
  pool.view.keys = pool.keys.data();
  pool.view.values = pool.values.data();
  std::vector<float> q = test::make_queries(c, seed);
  for (float& x : q) x = test::from_number(Number::kBf16, test::to_number(Number::kBf16, x));
  if (number == Number::kF16) {
    for (float& x : q) x = test::from_number(number, test::to_number(number, x));
  }

  const test::DeviceBytes keys(test::in_block_order(c, pool.keys, number)),
      values(test::in_block_order(c, pool.values, number));
  test::CudaStep step(c, number, cost);
  step.write_queries(q);
  TreeAttention args = step.args();
  args.keys = keys.as<std::byte>();
  args.values = values.as<std::byte>();
  args.block_bytes = std::int64_t{2} * c.block_size * c.heads.n_kv_head * c.heads.head_dim;
  const auto attend = [&] {
    step.poison_out();
    if (const char* error = launch_tree_attention(args, cost.n_workers, nullptr)) throw std::runtime_error(error);
    test::check_cuda(cudaGetLastError(), "launch");
    return step.out();
  };
  const std::vector<std::uint16_t> out = attend();
  const bool same = out == attend();

  std::vector<float> expected(q.size());
  attention::attend_reference(c.heads, pool.view, c.group, c.rows(), q, expected);
  double error = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double e = expected[i], got = test::from_number(number, out[i]);
    error += (got - e) * (got - e);
    norm += e * e;
  }
  const double relative = std::sqrt(error / norm);
  const bool is_bf16 = number == Number::kBf16;
  const bool ok = same && relative < kTolerance[is_bf16 ? 0 : 1];  // NaN is not ok
  std::printf("%-6s %s %2d/%d x %3d, %4d rows, %4zu items, %5d slots: error %.2e%s  %s\n", ok ? "ok" : "FAILED",
              is_bf16 ? "bf16" : "f16 ", c.heads.n_head, c.heads.n_kv_head, c.heads.head_dim, c.n_rows(),
              step.plan().items.size(), step.plan().n_slots, relative, same ? "" : ", other bits the second time",
              c.name.c_str());
  std::fflush(stdout);
  double& largest = is_bf16 ? worst.bf16 : worst.f16;
  largest = std::max(largest, relative);
  worst.failed += ok ? 0 : 1;
  ++worst.run;
}

test::AttentionCase random_case(std::mt19937_64& random, bool small) {
  test::RandomShape shape = {.max_sequences = 24, .max_length = 900, .max_chunk = 90, .sliding = random() % 3 == 0};
  if (small) shape = {.max_sequences = 5, .max_length = 200, .max_chunk = 20, .sliding = random() % 3 == 0};
  for (;;) {
    test::AttentionCase c = test::random_case(shape, random);
    if (c.block_size != attention::cuda::kBlockSize) continue;
    constexpr int kDims[] = {128, 64, 80, 96, 256};
    constexpr int kHeads[][2] = {{8, 2}, {4, 4}, {9, 3}, {16, 2}, {7, 1}};
    const auto& heads = kHeads[random() % 5];
    c.heads = {.n_head = heads[0], .n_kv_head = heads[1], .head_dim = kDims[random() % 5]};
    c.heads.scale = 1.0F / std::sqrt(static_cast<float>(c.heads.head_dim));
    return c;
  }
}

int run(bool small) {
  Worst worst;
  const int workers = n_workers();
  std::mt19937_64 random(test::test_seed());
  const auto cost_of = [&](const test::AttentionCase& c) {
    return TreeCost{.n_workers = workers, .n_kv_head = c.heads.n_kv_head, .heads_per_kv = c.heads.heads_per_kv()};
  };
  for (const int dim : {128, 64, 80, 96, 256}) {  // first something simple for each kernel
    for (const Number number : {Number::kBf16, Number::kF16}) {
      const std::vector<test::Path> one = {{.length = 64}};
      test::AttentionCase c = test::make_case("one row, 64 tokens", one, attention::cuda::kBlockSize, {}, 1);
      c.heads = {.n_head = 4, .n_kv_head = 1, .head_dim = dim, .scale = 0.1F};
      check(c, number, cost_of(c), random(), worst);
    }
  }
  for (int i = 0; i < (small ? 6 : 60); ++i) {
    const test::AttentionCase c = random_case(random, small);
    TreeCost cost = cost_of(c);
    if (random() % 3 == 0) cost.chunk_blocks = 2 << random() % 4;
    if (random() % 3 == 0) cost.bundled_blocks = static_cast<int>(random() % 12);
    check(c, random() % 4 == 0 ? Number::kF16 : Number::kBf16, cost, random(), worst);
  }
  if (!small) {
    for (const test::AttentionCase& c : test::named_cases(attention::cuda::kBlockSize))
      check(c, Number::kBf16, cost_of(c), 1, worst);
  }
  std::printf("%d of %d failed; largest error bf16 %.2e, f16 %.2e\n", worst.failed, worst.run, worst.bf16, worst.f16);
  return worst.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  try {
    return coppice::run(argc > 1 && std::strcmp(argv[1], "--small") == 0);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
