// The tree kernels on the GPU against the scalar reference in double precision, on random trees and on the named steps,
// and one captured launch replayed with plan after plan; run twice, each must give the same bits. Prints a line a case
// and the largest errors; exits with 1 if one is too large. --small: few and small ones, for compute-sanitizer.
// COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstdio>
#include <cstring>

#include "attention/reference.h"
#include "cuda/run_program.h"
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

std::vector<std::byte> rounded(std::vector<std::byte> half_pool) {
  for (std::size_t i = 0; i < half_pool.size(); i += 2) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, &half_pool[i], 2);
    bits = test::both_hold(bits);
    std::memcpy(&half_pool[i], &bits, 2);
  }
  return half_pool;
}

/// Which kernel computes on what.
struct Kind {
  Number number = Number::kBf16;
  bool bytes = false, plain = false;  ///< as TreeAttention's
};

/// A case's pool and queries, on the device as a kind of kernel wants them, and the result in double precision.
struct Problem {
  Problem(const test::AttentionCase& c, const Kind& kind, std::uint64_t seed, const std::vector<float>& sinks = {})
      : q(test::make_queries(c, seed)) {
    test::PoolData pool(c, seed);
    for (auto* half : {&pool.keys, &pool.values}) {
      *half = rounded(std::move(*half));
      test::DeviceBytes& to = half == &pool.keys ? keys : values;
      to = kind.bytes ? test::DeviceBytes(test::in_byte_order(c, *half))
                      : test::DeviceBytes(test::in_block_order(c, *half, kind.number));
    }
    pool.view.keys = pool.keys.data();
    pool.view.values = pool.values.data();
    for (float& x : q) x = test::from_number(Number::kBf16, test::to_number(Number::kBf16, x));
    if (kind.number == Number::kF16) {
      for (float& x : q) x = test::from_number(kind.number, test::to_number(kind.number, x));
    }
    expected.resize(q.size());
    attention::attend_reference(c.heads, pool.view, c.group, c.rows(), q, expected, sinks);
    const auto head = static_cast<std::int64_t>(c.block_size) * c.heads.head_dim * 2;
    block_bytes = c.heads.n_kv_head * (kind.bytes ? head / 2 + std::int64_t{c.block_size} * 2 : head);
  }

  void set(TreeAttention& args, const Kind& kind) const {
    args.bytes = kind.bytes;
    args.plain = kind.plain;
    args.keys = keys.as<std::byte>();
    args.values = values.as<std::byte>();
    args.block_bytes = block_bytes;
  }

  double error(const std::vector<std::uint16_t>& out, Number number) const {
    double error = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const double e = expected[i], got = test::from_number(number, out[i]);
      error += (got - e) * (got - e);
      norm += e * e;
    }
    return std::sqrt(error / norm);
  }

  std::vector<float> q, expected;
  test::DeviceBytes keys, values;
  std::int64_t block_bytes = 0;
};

void report(const test::AttentionCase& c, const Kind& kind, const test::CudaStep& step, double error, bool same,
            Worst& worst) {
  const bool is_bf16 = kind.number == Number::kBf16;
  const bool ok = same && error < kTolerance[is_bf16 ? 0 : 1];  // NaN is not ok
  std::printf("%-6s %s%s%s %2d/%d x %3d, %4d rows, %4d items, %5d slots: error %.2e%s  %s\n", ok ? "ok" : "FAILED",
              is_bf16 ? "bf16" : "f16 ", kind.bytes ? " int8" : "", kind.plain ? " plain" : "", c.heads.n_head,
              c.heads.n_kv_head, c.heads.head_dim, c.n_rows(), step.plan().n_items, step.plan().n_slots, error,
              same ? "" : ", other bits the second time", c.name.c_str());
  std::fflush(stdout);
  double& largest = is_bf16 ? worst.bf16 : worst.f16;
  largest = std::max(largest, error);
  worst.failed += ok ? 0 : 1;
  ++worst.run;
}

/// sinks: of each head; empty: there are none.
void check(const test::AttentionCase& c, const Kind& kind, const TreeCost& cost, std::uint64_t seed, Worst& worst,
           const std::vector<float>& sinks = {}) {
  const Problem problem(c, kind, seed, sinks);
  const test::DeviceBytes device_sinks(sinks);
  test::CudaStep step(c, kind.number, cost);
  step.write_queries(problem.q);
  TreeAttention args = step.args();
  problem.set(args, kind);
  args.softcap = c.heads.softcap;
  args.sinks = sinks.empty() ? nullptr : device_sinks.as<float>();
  const auto attend = [&] {
    step.poison_out();
    if (const char* error = launch_tree_attention(args, cost.n_workers, test::current_gpu()))
      throw std::runtime_error(error);
    test::check_cuda(cudaGetLastError(), "launch");
    return step.out();
  };
  const std::vector<std::uint16_t> out = attend();
  report(c, kind, step, problem.error(out, kind.number), out == attend(), worst);
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

/// One captured launch serves plan after plan: what changes is in device memory only.
void replay(std::mt19937_64& random, const Kind& kind, int n_workers, Worst& worst) {
  constexpr int kRoom = 1 << 14, kPlans = 6;
  std::vector<test::AttentionCase> cases;
  for (int i = 0; i < kPlans; ++i) {
    cases.push_back(random_case(random, false));
    cases.back().heads = {.n_head = 8, .n_kv_head = 2, .head_dim = 128, .scale = 0.088F};
    cases.back().name = "replayed " + std::to_string(i);
  }
  test::CudaStep step(cases.front(), kind.number, {.n_workers = n_workers, .n_kv_head = 2, .heads_per_kv = 4}, kRoom);
  std::int64_t most_blocks = 0;
  for (const test::AttentionCase& c : cases) most_blocks = std::max<std::int64_t>(most_blocks, c.n_blocks);
  const std::size_t half = static_cast<std::size_t>(most_blocks) * 2 * 32 * 128 * 2;
  const test::DeviceBytes keys(half), values(half);
  TreeAttention args = step.args();
  args.bytes = kind.bytes;
  args.plain = kind.plain;
  args.keys = keys.as<std::byte>();
  args.values = values.as<std::byte>();
  args.block_bytes = 2 * 32 * (kind.bytes ? 130 : 256);
  cudaStream_t stream = nullptr;
  test::check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  test::check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  if (const char* error = launch_tree_attention(args, n_workers, test::current_gpu(stream)))
    throw std::runtime_error(error);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  test::check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
  test::check_cuda(cudaGraphInstantiate(&ready, graph, 0), "graph");
  for (const test::AttentionCase& c : cases) {
    const Problem problem(c, kind, random());
    step.put(c);
    step.write_queries(problem.q);
    const auto n = static_cast<std::size_t>(c.n_blocks * problem.block_bytes);
    test::check_cuda(cudaMemcpy(keys.as<void>(), problem.keys.as<void>(), n, cudaMemcpyDeviceToDevice), "copy");
    test::check_cuda(cudaMemcpy(values.as<void>(), problem.values.as<void>(), n, cudaMemcpyDeviceToDevice), "copy");
    const auto attend = [&] {
      step.poison_out();
      test::check_cuda(cudaDeviceSynchronize(), "before the graph");
      test::check_cuda(cudaGraphLaunch(ready, stream), "graph");
      return step.out();
    };
    const std::vector<std::uint16_t> out = attend();
    report(c, kind, step, problem.error(out, kind.number), out == attend(), worst);
  }
  cudaGraphExecDestroy(ready);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

int run(bool small) {
  Worst worst;
  const int workers = test::current_gpu().n_multiprocessors();
  std::mt19937_64 random(test::test_seed());
  const auto cost_of = [&](const test::AttentionCase& c) {
    return TreeCost{.n_workers = workers, .n_kv_head = c.heads.n_kv_head, .heads_per_kv = c.heads.heads_per_kv()};
  };
  for (const int dim : {128, 64, 80, 96, 256}) {  // first something simple for each kernel
    for (const Number number : {Number::kBf16, Number::kF16}) {
      const std::vector<test::Path> one = {{.length = 64}};
      test::AttentionCase c = test::make_case("one row, 64 tokens", one, attention::cuda::kBlockSize, {}, 1);
      c.heads = {.n_head = 4, .n_kv_head = 1, .head_dim = dim, .scale = 0.1F};
      for (const bool plain : {false, true}) {
        for (const bool bytes : {false, true}) check(c, {number, bytes, plain}, cost_of(c), random(), worst);
      }
    }
  }
  for (int i = 0; i < (small ? 6 : 60); ++i) {
    test::AttentionCase c = random_case(random, small);
    TreeCost cost = cost_of(c);
    if (i % 3 == 1) {
      c.heads.softcap = 1.5F;
      c.name += ", softcap";
    }
    std::vector<float> sinks;
    std::normal_distribution<float> normal(1.0F, 2.0F);
    for (int h = 0; h < c.heads.n_head && i % 3 == 2; ++h) sinks.push_back(normal(random));
    if (!sinks.empty()) c.name += ", sinks";
    if (random() % 3 == 0) cost.chunk_blocks = 4 << random() % 4;
    if (random() % 3 == 0) cost.bundled_blocks = static_cast<int>(random() % 12);
    if (random() % 2 == 0) cost.n_workers = 1 + static_cast<int>(random() % 12);  // many items for each
    const Number number = random() % 4 == 0 ? Number::kF16 : Number::kBf16;
    for (const Kind& kind : {Kind{number}, Kind{number, false, true}, Kind{number, true}})
      check(c, kind, cost, random(), worst, sinks);
  }
  for (const int dim : {128, 64, 80, 96, 256}) {  // many rows on a run that is one item for each of their bands
    test::AttentionCase c =
        test::make_case("prefill 300 at depth 1,500", std::vector<test::Path>{{.length = 1800, .n_rows = 300}},
                        attention::cuda::kBlockSize, {}, 1);
    c.heads = {.n_head = 8, .n_kv_head = 2, .head_dim = dim, .scale = 0.1F};
    TreeCost whole = cost_of(c);
    whole.chunk_blocks = 1 << 10;
    if (!small) check(c, {}, whole, 1, worst);
  }
  if (!small) {
    for (const test::AttentionCase& c : test::named_cases(attention::cuda::kBlockSize)) {
      TreeCost whole = cost_of(c);  // runs of thousands of tokens in one item
      whole.chunk_blocks = 1 << 10;
      for (const Kind& kind : {Kind{}, Kind{.plain = true}, Kind{.bytes = true}}) check(c, kind, cost_of(c), 1, worst);
      for (const Kind& kind : {Kind{}, Kind{.bytes = true}}) check(c, kind, whole, 1, worst);
    }
  }
  if (!small) {
    for (const Kind& kind : {Kind{}, Kind{.plain = true}, Kind{.bytes = true}}) replay(random, kind, workers, worst);
  }
  std::printf("%d of %d failed; largest error bf16 %.2e, f16 %.2e\n", worst.failed, worst.run, worst.bf16, worst.f16);
  return worst.failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_on_each_gpu([&] { return coppice::run(coppice::test::is_small(argc, argv)); });
}
