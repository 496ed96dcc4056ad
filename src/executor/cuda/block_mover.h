// BlockMover: a step's block operations on a GPU: copies inside of the pool, in the steps' stream; stores to the host's memory and loads from there in a
// stream of its own, beside the steps' kernels. Nothing here waits on the host but wait(). Not thread safe.
//
// What is stored is first copied to a place aside, in the steps' stream, where it takes microseconds: the block may be written by the same step.
// From there it goes to the host while the step computes. What is loaded goes into its block at once: no row of the step sees that, and the next step
// begins behind it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "executor/cuda/device_memory.h"
#include "executor/cuda/stream.h"
#include "executor/executor.h"
#include "kv/types.h"

namespace coppice::executor::cuda {

class BlockMover {
 public:
  /// Of each block the first bytes of its page, as its group says.
  struct Pool {
    std::byte* memory = nullptr;
    std::size_t page_bytes = 0;
    std::vector<kv::GroupSpec> groups;
  };
  /// On the GPU that is current.
  void set(Pool pool);

  /// Puts a step's operations into `steps`, in order, and into the other stream. step: its number. Throws std::runtime_error; then a part of them may
  /// be there. REQUIRES: wait() has returned for the step before the one before.
  void run(const Batch& batch, std::uint64_t step, const Stream& steps);
  /// Until what a step stores and loads is done: mostly it is, when the step is.
  void wait(std::uint64_t step) const;

 private:
  static constexpr std::size_t kHands = 2;  ///< steps in hand
  struct Hand {
    Event aside, moved;
    bool moves = false;
  };

  std::size_t bytes_of(const kv::BlockOp& op) const;
  std::byte* at(kv::BlockId block) const;
  void store(const kv::BlockOp& op, std::byte* to, std::uint64_t step, const Stream& steps);
  void flush(std::uint64_t step, const Stream& steps);

  Pool pool_;
  Stream stream_;
  DeviceMemory aside_;  ///< [kHands][places_] pages; taken when something is stored first
  std::size_t places_ = 0;
  std::array<Hand, kHands> hands_;
  struct Store {
    std::size_t place = 0, bytes = 0;
    std::byte* to = nullptr;
  };
  std::vector<Store> stores_;  ///< copied aside, not on their way yet
  std::size_t used_ = 0;       ///< places of this step
};

}  // namespace coppice::executor::cuda
