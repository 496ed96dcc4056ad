// BlockMover: a step's block operations on a GPU: copies inside of the pool, in the steps' stream; stores to the host's
// memory and loads from there in a stream each, beside the steps' kernels and each other: the bus carries both at once.
// Nothing here waits on the host but wait(). Not thread safe.
//
// What is stored is first copied to a place aside, in the steps' stream, where it takes microseconds: the block may be
// written by the same step. From there it goes to the host while the step computes. A step that only moves blocks
// stores them as they are. What is loaded goes into its block at once, or as soon as what was there is stored: no row
// of the step sees that, and the next step begins behind it. So where a sequence takes a full pool's blocks, what they
// held leaves while it comes.
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

  /// Puts a step's operations into `steps`, in order, and into the other stream. step: its number. Throws
  /// std::runtime_error; then a part of them may be there. REQUIRES: wait() has returned for the step before the one
  /// before.
  void run(const Batch& batch, std::uint64_t step, const Stream& steps);
  /// Until what a step stores and loads is done: mostly it is, when the step is.
  void wait(std::uint64_t step) const;

 private:
  static constexpr std::size_t kHands = 2;  ///< steps in hand
  struct Store {
    std::size_t aside = 0;  ///< which of the pages aside
    const kv::BlockOp* op = nullptr;
    std::byte* to = nullptr;
    kv::BlockId block = kv::kNullBlock;
    std::size_t mark = 0;  ///< behind what reads the block
  };
  struct Hand {
    CudaEvent begun, stored, loaded;
    bool stores = false, loads = false;
    bool direct = false;  ///< it only stores and loads, and blocks don't go aside
    std::vector<Store> placed;
    std::vector<CudaEvent> marks;
    std::size_t n_marks = 0;
  };
  struct Load {
    const CudaEvent* behind = nullptr;
    std::size_t nth = 0;  ///< of that event
    const kv::BlockOp* op = nullptr;
  };

  std::size_t bytes_of(const kv::BlockOp& op) const;
  std::byte* at(kv::BlockId block) const;
  Hand& hand_of(std::uint64_t step) { return hands_[step % kHands]; }
  void store(const kv::BlockOp& op, std::byte* to, std::uint64_t step, const Stream& steps);
  void flush(std::uint64_t step, const Stream& steps);
  void mark(Hand& hand, const Stream& stream);
  Load load_of(const kv::BlockOp& op, const Hand& hand, const Hand& before) const;
  void load(std::span<const kv::BlockOp> ops, const Batch& batch, std::uint64_t step);

  Pool pool_;
  Stream out_, in_;
  DeviceMemory aside_;  ///< [kHands][places_] pages; taken when something is stored first
  std::size_t places_ = 0;
  std::array<Hand, kHands> hands_;
  // Of the step that is being put:
  std::size_t n_sent_ = 0;  ///< of what is placed
  std::size_t used_ = 0;    ///< places
  bool copies_ = false;     ///< it has copied inside of the pool
  std::vector<Load> loads_;
};

}  // namespace coppice::executor::cuda
