// The tree kernel's time on this GPU, one layer of an 8B shape (32/8 heads x 128, bf16), for the steps of
// bench/README.md.
//
// Timed inside a CUDA graph that attends over each of several pools in turn, so that nothing of a pool is left in the
// L2 cache; planning apart. The floor is the step's different bytes over the bandwidth that a device-to-device copy
// reaches in this run.
//   attention_cuda_bench [--replays N] [--json FILE] [--chunk BLOCKS] [--bundle BLOCKS] [--sweep] [--only PART_OF_NAME]
//     [--plain: the kernel for GPUs without wgmma] [--int8: its int8 blocks] [--dim VALUES_OF_A_HEAD]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>

#include "cuda/early_rows.h"
#include "cuda/replay.h"
#include "support/cuda_step.h"

namespace coppice {
namespace {

using attention::cuda::Number;
using attention::cuda::TreeCost;
using bench::Graph;
using bench::kPools;
using bench::Timing;
using test::check_cuda;
using test::DeviceBytes;

struct Options {
  int replays = 20;
  const char* json = nullptr;
  TreeCost cost;
  bool sweep = false;
  const char* only = "";  ///< cases whose names hold this
  bool plain = false, bytes = false;
  int head_dim = 128;
  bool merges = true;  ///< false: rows with several partial states get no output
};

test::AttentionCase step(const char* name, std::vector<test::Path> paths) {
  test::AttentionCase c = test::make_case(name, paths, attention::cuda::kBlockSize, {}, 1);
  c.heads = {.n_head = 32, .n_kv_head = 8, .head_dim = 128, .scale = 1.0F / std::sqrt(128.0F)};
  return c;
}

test::AttentionCase decodes(const char* name, int shared, int own, int n) {
  std::vector<test::Path> paths;
  if (shared > 0) paths.push_back({.length = shared, .reads = false});
  for (int i = 0; i < n; ++i) {
    paths.push_back(shared > 0 ? test::Path{.parent = 0, .shared = shared, .length = shared + own}
                               : test::Path{.length = own});
  }
  return step(name, std::move(paths));
}

std::vector<test::AttentionCase> cases() {
  std::vector<test::AttentionCase> all;
  all.push_back(decodes("2,048 shared + 256, B = 8", 2048, 256, 8));
  all.push_back(decodes("2,048 shared + 256, B = 32", 2048, 256, 32));
  all.push_back(decodes("2,048 shared + 256, B = 64", 2048, 256, 64));
  all.push_back(decodes("8,192 shared + 256, B = 8", 8192, 256, 8));
  all.push_back(decodes("8,192 shared + 256, B = 32", 8192, 256, 32));
  all.push_back(decodes("8,192 shared + 256, B = 64", 8192, 256, 64));
  all.push_back(decodes("nothing shared, depth 2,048, B = 32", 0, 2048, 32));
  all.push_back(decodes("8,192 shared + 1, B = 64", 8192, 1, 64));
  all.push_back(decodes("one decode at 8,192", 0, 8192, 1));
  all.push_back(step("prefill 2,048 at depth 0", {{.length = 2048, .n_rows = 2048}}));
  all.push_back(step("prefill 2,048 at depth 6,144", {{.length = 8192, .n_rows = 2048}}));
  std::vector<test::Path> burst = {{.length = 8192, .reads = false}};
  for (int i = 0; i < 64; ++i) burst.push_back({.parent = 0, .shared = 8192, .length = 8192 + 20, .n_rows = 20});
  all.push_back(step("8,192 shared + 20 new each, B = 64", burst));
  std::vector<test::Path> mixed = {{.length = 2048 + 512, .n_rows = 512}};
  for (int i = 0; i < 32; ++i) mixed.push_back({.parent = 0, .shared = 2048, .length = 2048 + 256});
  all.push_back(step("prefill 512 at 2,048 + 32 decodes on it", mixed));
  return all;
}

/// Fills with bf16 values of about 1 either way.
void randomise(const DeviceBytes& bytes, std::size_t n) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> some(std::min(n / 2, std::size_t{4} << 20));
  for (std::uint16_t& x : some) x = test::to_number(Number::kBf16, normal(random));
  for (std::size_t at = 0; at < n; at += some.size() * 2) {
    check_cuda(
        cudaMemcpy(bytes.as<std::byte>() + at, some.data(), std::min(some.size() * 2, n - at), cudaMemcpyHostToDevice),
        "copy");
  }
}

/// A case's pools and what is timed on them.
class Bench {
 public:
  Bench(const test::AttentionCase& c, const Options& options)
      : c_(c),
        block_bytes_(std::int64_t{c.block_size} * c.heads.n_kv_head *
                     (options.bytes ? c.heads.head_dim + 2 : 2 * c.heads.head_dim)),
        half_(static_cast<std::size_t>(c.n_blocks * block_bytes_)),
        pools_(2 * half_ * kPools) {
    randomise(pools_, 2 * half_ * kPools);
    std::mt19937_64 random(2);
    std::normal_distribution<float> normal;
    q_.resize(static_cast<std::size_t>(c.n_rows()) * static_cast<std::size_t>(32 * c.heads.head_dim));
    for (float& x : q_) x = normal(random);
  }

  struct Result {
    Timing time;
    int items = 0, slots = 0;
  };
  Result time(const Options& options) const {
    test::CudaStep step(c_, Number::kBf16, options.cost);
    step.write_queries(q_);
    const attention::cuda::TreeCounts unmerged = {step.plan().n_items, 0};
    const DeviceBytes counts(std::vector<attention::cuda::TreeCounts>{unmerged});
    Graph graph([&](int pool, const cuda::Gpu& gpu) {
      attention::cuda::TreeAttention args = step.args();
      args.keys = pools_.as<std::byte>() + 2 * half_ * static_cast<std::size_t>(pool);
      args.values = args.keys + half_;
      args.block_bytes = block_bytes_;
      args.plain = options.plain;
      args.bytes = options.bytes;
      args.early = c_.n_rows() <= cuda::kMostEarlyRows;  // as in a step
      if (!options.merges) args.counts = counts.as<attention::cuda::TreeCounts>();
      if (const char* error = launch_tree_attention(args, options.cost.n_workers, gpu)) throw std::runtime_error(error);
      check_cuda(cudaGetLastError(), "launch");
    });
    return {graph.time(options.replays), step.plan().n_items, step.plan().n_slots};
  }

  void report(const Options& options, double bandwidth, std::FILE* json) const {
    const Result r = time(options);
    const double bytes = static_cast<double>(c_.unique_slots() * block_bytes_ / c_.block_size * 2);
    const double floor = bytes / bandwidth * 1e6;
    std::printf("%-42s %7.1f us (least %.1f), floor %.1f, %4.0f GB/s, %d items, %d slots\n", c_.name.c_str(),
                r.time.median, r.time.least, floor, bytes / r.time.median * 1e-3, r.items, r.slots);
    std::fflush(stdout);
    if (json != nullptr) {
      std::fprintf(json, ",\n    {\"case\": \"%s\", \"us\": %.2f, \"least_us\": %.2f, \"floor_us\": %.2f}",
                   c_.name.c_str(), r.time.median, r.time.least, floor);
    }
  }

  /// What other chunks take, with short runs bundled and with longer ones bundled, too; and the chosen ones without
  /// merging.
  void sweep(Options options) const {
    for (const int bundled : {2, 8}) {
      std::printf("  runs up to %d blocks bundled; us by chunk:", bundled);
      for (const int chunk : {4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64}) {
        Options other = options;
        other.cost.bundled_blocks = bundled;
        other.cost.chunk_blocks = chunk;
        std::printf("  %d: %.1f", chunk, time(other).time.median);
      }
      std::printf("\n");
    }
    options.merges = false;
    std::printf("  without merging %.1f us\n", time(options).time.median);
    std::fflush(stdout);
  }

 private:
  const test::AttentionCase& c_;
  std::int64_t block_bytes_;
  std::size_t half_;
  DeviceBytes pools_;
  std::vector<float> q_;
};

double plan_time(const test::AttentionCase& c, const TreeCost& cost) {
  const std::vector<attention::SequenceRows> rows = c.rows();
  attention::SharePlanner sharing(c.group);
  attention::cuda::TreePlanner planner({1 << 14, 1 << 16, 1 << 16, 1 << 12}, cost);
  const attention::SharePlan& shared = sharing.plan(rows);
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kTimes = 50;
  for (int i = 0; i < kTimes; ++i) planner.plan(shared);
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() / kTimes;
}

/// A launch whose plan is empty: what begins and ends it.
double empty_launch(const Options& options) {
  test::CudaStep step(decodes("", 0, 64, 1), Number::kBf16, options.cost);
  const DeviceBytes counts(sizeof(attention::cuda::TreeCounts));
  counts.fill(0);
  attention::cuda::TreeAttention args = step.args();
  args.counts = counts.as<attention::cuda::TreeCounts>();
  Graph graph([&](int, const cuda::Gpu& gpu) { launch_tree_attention(args, options.cost.n_workers, gpu); });
  return graph.time(options.replays).median;
}

void run(Options options) {
  cudaDeviceProp device{};
  check_cuda(cudaGetDeviceProperties(&device, 0), "device");
  options.cost.n_workers = device.multiProcessorCount;
  if (options.plain || options.bytes) options.cost.use_plain_kernel();
  const double bandwidth = bench::copy_bandwidth();
  std::printf("%s, %d multiprocessors, copies at %.2f TB/s; an empty launch %.1f us\n", device.name,
              device.multiProcessorCount, bandwidth * 1e-12, empty_launch(options));
  std::FILE* json = options.json != nullptr ? std::fopen(options.json, "w") : nullptr;
  if (json != nullptr) {
    std::fprintf(json, "{\n  \"device\": \"%s\",\n  \"attention\": [\n    {\"case\": \"copy\", \"tb_s\": %.3f}",
                 device.name, bandwidth * 1e-12);
  }
  for (test::AttentionCase& c : cases()) {
    c.heads.head_dim = options.head_dim;
    c.heads.scale = 1.0F / std::sqrt(static_cast<float>(options.head_dim));
    if (c.name.find(options.only) == std::string::npos) continue;
    const Bench bench(c, options);
    bench.report(options, bandwidth, json);
    if (!options.sweep || c.n_rows() > 100) continue;
    std::printf("  plan %.0f us on the host\n", plan_time(c, options.cost));
    bench.sweep(options);
  }
  if (json != nullptr) {
    std::fprintf(json, "\n  ]\n}\n");
    std::fclose(json);
  }
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  coppice::Options options;
  for (int i = 1; i < argc; ++i) {
    const auto value = [&] { return i + 1 < argc ? argv[++i] : "0"; };
    if (std::strcmp(argv[i], "--replays") == 0) options.replays = std::max(1, std::atoi(value()));
    if (std::strcmp(argv[i], "--json") == 0) options.json = value();
    if (std::strcmp(argv[i], "--chunk") == 0) options.cost.chunk_blocks = std::atoi(value());
    if (std::strcmp(argv[i], "--bundle") == 0) options.cost.bundled_blocks = std::atoi(value());
    if (std::strcmp(argv[i], "--only") == 0) options.only = value();
    if (std::strcmp(argv[i], "--sweep") == 0) options.sweep = true;
    if (std::strcmp(argv[i], "--plain") == 0) options.plain = true;
    if (std::strcmp(argv[i], "--int8") == 0) options.bytes = true;
    if (std::strcmp(argv[i], "--dim") == 0) options.head_dim = std::atoi(value());
  }
  try {
    coppice::run(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
