#include "executor/cuda/block_mover.h"

#include <algorithm>
#include <utility>

#include "attention/cuda/tree_attention.h"

namespace coppice::executor::cuda {

namespace {

constexpr std::size_t kAsideBytes = std::size_t{32} << 20;  // of a step

}  // namespace

void BlockMover::set(Pool pool) {
  pool_ = std::move(pool);
  places_ = std::max<std::size_t>(kAsideBytes / pool_.page_bytes, 1);
}

std::size_t BlockMover::bytes_of(const kv::BlockOp& op) const {
  return pool_.groups[static_cast<std::size_t>(op.group)].bytes_per_token *
         static_cast<std::size_t>(attention::cuda::kBlockSize);
}

std::byte* BlockMover::at(kv::BlockId block) const {
  return pool_.memory + static_cast<std::size_t>(block) * pool_.page_bytes;
}

/// What was copied aside goes to the host.
void BlockMover::flush(std::uint64_t step, const Stream& steps) {
  if (stores_.empty()) return;
  const Hand& hand = hands_[step % kHands];
  hand.aside.record(steps);
  stream_.follow(hand.aside);
  for (const Store& store : stores_) {
    const auto* const from = aside_.as<std::byte>(((step % kHands) * places_ + store.place) * pool_.page_bytes);
    check(cudaMemcpyAsync(store.to, from, store.bytes, cudaMemcpyDeviceToHost, stream_.get()), "storing a block");
  }
  stores_.clear();
}

void BlockMover::store(const kv::BlockOp& op, std::byte* to, std::uint64_t step, const Stream& steps) {
  if (used_ == places_) {  // more than there are places: the step waits for these
    flush(step, steps);
    hands_[step % kHands].moved.record(stream_);
    steps.follow(hands_[step % kHands].moved);
    used_ = 0;
  }
  if (aside_.as<std::byte>() == nullptr)
    aside_ = DeviceMemory(kHands * places_ * pool_.page_bytes, "blocks on their way");
  auto* const place = aside_.as<std::byte>(((step % kHands) * places_ + used_) * pool_.page_bytes);
  check(cudaMemcpyAsync(place, at(op.src), bytes_of(op), cudaMemcpyDeviceToDevice, steps.get()), "storing a block");
  stores_.push_back({.place = used_++, .bytes = bytes_of(op), .to = to});
}

void BlockMover::run(const Batch& batch, std::uint64_t step, const Stream& steps) {
  using enum kv::BlockOp::Kind;
  const Hand& before = hands_[(step + 1) % kHands];
  if (before.moves) steps.follow(before.moved);  // what it loads is there
  Hand& hand = hands_[step % kHands];
  hand.moves = false;
  stores_.clear();
  used_ = 0;
  bool loads = false;
  for (const kv::BlockOp& op : batch.block_ops) {
    if (op.kind == kLoad) {
      hand.moves = true;
      if (!loads) {  // earlier steps, and operations before it, may read or write the block
        flush(step, steps);
        hand.aside.record(steps);
        stream_.follow(hand.aside);
        loads = true;
      }
      const std::byte* const from = batch.outside[op.outside].data();
      check(cudaMemcpyAsync(at(op.dst), from, bytes_of(op), cudaMemcpyHostToDevice, stream_.get()), "loading a block");
      continue;
    }
    if (loads) {  // rare: what was loaded may be what this one reads or writes
      hand.moved.record(stream_);
      steps.follow(hand.moved);
      loads = false;
    }
    if (op.kind == kStore) {
      hand.moves = true;
      store(op, batch.outside[op.outside].data(), step, steps);
    } else if (op.n_slots > 0 &&
               op.src != op.dst) {  // all of it: slots behind a copy's are not seen before they are written
      check(cudaMemcpyAsync(at(op.dst), at(op.src), bytes_of(op), cudaMemcpyDeviceToDevice, steps.get()),
            "copy of a block");
    }
  }
  flush(step, steps);
  if (hand.moves) hand.moved.record(stream_);
}

void BlockMover::wait(std::uint64_t step) const {
  const Hand& hand = hands_[step % kHands];
  if (hand.moves) hand.moved.wait();
}

}  // namespace coppice::executor::cuda
