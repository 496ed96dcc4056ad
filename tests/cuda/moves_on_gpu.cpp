// Blocks that are stored, loaded and copied on the GPU, at random and two steps at a time, with and without rows in a
// step, against the same operations one after the other on the host: all bytes of all blocks and places. Prints a line
// a case; exits with 1 where a byte differs. Arguments: --small for compute-sanitizer. COPPICE_SEED=n replays a run.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "cuda/executor_program.h"
#include "executor/cuda/device_memory.h"
#include "executor/cuda/stream.h"
#include "support/executor_rig.h"

namespace coppice {
namespace {

using executor::Batch;
using executor::Executor;
using kv::BlockOp;
using Kind = kv::BlockOp::Kind;

/// Some blocks of a pool, and places outside of it, here and there. What is in them is always one of some contents.
class Mirror {
 public:
  static constexpr std::size_t kBlocks = 90, kPlaces = 100;

  Mirror(Executor& executor, std::uint64_t seed)
      : executor_(executor),
        rig_(executor, 3),
        random_(seed),
        bytes_(executor.info().outside_bytes(0)),
        memory_((kPlaces + 2) * bytes_),
        read_(kBlocks * bytes_) {
    knows_ = executor.know_memory(memory_);
    for (std::byte& b : memory_) b = static_cast<std::byte>(random_());
    for (std::size_t i = 0; i < kPlaces; ++i) {
      contents_.emplace_back(place(i).begin(), place(i).end());
      in_places_.push_back(i);
    }
    Batch batch;
    for (std::size_t i = 0; i < kBlocks; ++i) {
      blocks_.push_back(rig_.take());
      in_blocks_.push_back(i);
      add(batch, {.kind = Kind::kLoad, .dst = blocks_[i]}, place(i));
    }
    executor.forward(batch);
  }
  ~Mirror() {
    if (knows_) executor_.forget_memory(memory_);
  }
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  /// Each is waited for when the next one is under way.
  void run(int n_steps) {
    std::deque<executor::Step> under_way;
    for (int i = 0; i < n_steps; ++i) {
      std::vector<kv::Token> tokens;
      Batch batch;
      if (random_() % 3 == 0 && sequence_.len < 500) {
        tokens.push_back(static_cast<kv::Token>(random_() % 300));
        const test::RigPart part{&sequence_, tokens, test::Want::kLast};
        batch = rig_.batch(std::span(&part, 1));
      }
      fill(batch);
      under_way.push_back(executor_.submit(batch));
      if (under_way.size() < 2) continue;
      executor_.wait(under_way.front());
      under_way.pop_front();
    }
    for (const executor::Step step : under_way) executor_.wait(step);
  }

  int wrong_places() const {
    int n = 0;
    for (std::size_t i = 0; i < kPlaces; ++i) n += std::ranges::equal(place(i), contents_[in_places_[i]]) ? 0 : 1;
    return n;
  }
  int wrong_blocks() {
    Batch batch;
    const auto found = [&](std::size_t i) { return std::span(read_).subspan(i * bytes_, bytes_); };
    for (std::size_t i = 0; i < kBlocks; ++i) add(batch, {.kind = Kind::kStore, .src = blocks_[i]}, found(i));
    executor_.forward(batch);
    int n = 0;
    for (std::size_t i = 0; i < kBlocks; ++i) n += std::ranges::equal(found(i), contents_[in_blocks_[i]]) ? 0 : 1;
    return n;
  }

 private:
  std::span<std::byte> place(std::size_t i) const {
    return std::span(const_cast<std::byte*>(memory_.data()), memory_.size()).subspan((i + 1) * bytes_, bytes_);
  }
  void add(Batch& batch, BlockOp op, std::span<std::byte> outside) const {
    op.n_slots = rig_.block_size();
    op.outside = batch.outside.size();
    batch.outside.push_back(outside);
    batch.block_ops.push_back(op);
  }

  /// Mostly as the engine has them, stores and then loads; else in any order. Copies are rarer.
  void fill(Batch& batch) {
    const bool in_order = random_() % 4 != 0, copies = random_() % 4 == 0;
    const std::size_t n = 1 + random_() % (random_() % 4 == 0 ? 200 : 20);
    for (std::size_t i = 0; i < n; ++i) {
      const std::size_t block = random_() % kBlocks, at = random_() % kPlaces, from = random_() % kBlocks;
      const bool stores = in_order ? i < n / 2 : random_() % 2 == 0;
      if (copies && from != block && random_() % 8 == 0) {
        batch.block_ops.push_back({.src = blocks_[from], .dst = blocks_[block], .n_slots = rig_.block_size()});
        in_blocks_[block] = in_blocks_[from];
      } else if (stores) {
        add(batch, {.kind = Kind::kStore, .src = blocks_[block]}, place(at));
        in_places_[at] = in_blocks_[block];
      } else {
        add(batch, {.kind = Kind::kLoad, .dst = blocks_[block]}, place(at));
        in_blocks_[block] = in_places_[at];
      }
    }
  }

  Executor& executor_;
  test::ExecutorRig rig_;
  std::mt19937_64 random_;
  std::size_t bytes_;
  std::vector<std::byte> memory_, read_;
  bool knows_ = false;  ///< the driver the memory: else it copies while the host waits
  test::RigSequence sequence_;
  std::vector<kv::BlockId> blocks_;
  std::vector<std::vector<std::byte>> contents_;
  std::vector<std::size_t> in_places_, in_blocks_;  ///< of contents_
};

int check(const char* kv_format, std::uint64_t seed, int n_steps) {
  test::TinyModel model = test::model_for_gpu();
  model.n_layer = 8, model.n_head = 8, model.n_kv_head = 4, model.head_dim = 128;  // half a megabyte a block
  const auto e = test::on_gpu(test::write_model(model), {.kv_format = kv_format, .kv_bytes = std::size_t{128} << 20});
  Mirror mirror(*e, seed);
  mirror.run(n_steps);
  const int places = mirror.wrong_places(), blocks = mirror.wrong_blocks();
  return test::report(fmt::format("{}: {} steps, {} wrong places, {} wrong blocks", kv_format, n_steps, places, blocks),
                      places + blocks == 0);
}

/// Memory that is taken while others compute: what a step writes there stays, however late the GPU clears it.
int check_memory_taken_late() {
  using executor::cuda::DeviceMemory;
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const executor::cuda::Stream steps;
  const std::vector<std::byte> ones(kBytes, std::byte{1});
  std::vector<std::byte> found(kBytes);
  cudaLaunchHostFunc(nullptr, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); }, nullptr);
  const DeviceMemory memory(kBytes, "a test");
  cudaMemcpyAsync(memory.as<void>(), ones.data(), kBytes, cudaMemcpyHostToDevice, steps.get());
  cudaDeviceSynchronize();
  cudaMemcpy(found.data(), memory.as<void>(), kBytes, cudaMemcpyDeviceToHost);
  return test::report("memory that is taken while others compute keeps what is written there", found == ones);
}

int run(int argc, char** argv) {
  const bool small = test::is_small(argc, argv);
  const std::uint64_t seed = test::program_seed(20251128);
  int failed = check_memory_taken_late();
  for (std::uint64_t i = 0; i < (small ? 1 : 4); ++i)
    failed += check(i % 2 == 0 ? "f16" : "int8", seed + i, small ? 20 : 1500);
  return failed;
}

}  // namespace
}  // namespace coppice

int main(int argc, char** argv) {
  return coppice::test::run_checks(argc, argv, coppice::run);
}
