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

void BlockMover::mark(Hand& hand, const Stream& stream) {
  if (hand.n_marks == hand.marks.size()) hand.marks.emplace_back();
  hand.marks[hand.n_marks].record(stream);
  ++hand.n_marks;
}

/// What was placed goes to the host.
void BlockMover::flush(std::uint64_t step, const Stream& steps) {
  Hand& hand = hand_of(step);
  if (n_sent_ == hand.placed.size()) return;
  if (!hand.direct) {
    mark(hand, steps);
    out_.follow(hand.marks[hand.n_marks - 1]);
  }
  for (; n_sent_ < hand.placed.size(); ++n_sent_) {
    const Store& store = hand.placed[n_sent_];
    const auto* const from = hand.direct
                                 ? at(store.block)
                                 : aside_.as<std::byte>(((step % kHands) * places_ + store.aside) * pool_.page_bytes);
    check(cudaMemcpyAsync(store.to, from, bytes_of(*store.op), cudaMemcpyDeviceToHost, out_.get()), "storing a block");
  }
  if (hand.direct) mark(hand, out_);
}

void BlockMover::store(const kv::BlockOp& op, std::byte* to, std::uint64_t step, const Stream& steps) {
  Hand& hand = hand_of(step);
  if (used_ == places_) {
    flush(step, steps);
    if (!hand.direct) {  // more than there are places: the step waits for these
      hand.stored.record(out_);
      steps.follow(hand.stored);
    }
    used_ = 0;
  }
  if (!hand.direct) {
    if (aside_.as<std::byte>() == nullptr)
      aside_ = DeviceMemory(kHands * places_ * pool_.page_bytes, "blocks on their way");
    auto* const place = aside_.as<std::byte>(((step % kHands) * places_ + used_) * pool_.page_bytes);
    check(cudaMemcpyAsync(place, at(op.src), bytes_of(op), cudaMemcpyDeviceToDevice, steps.get()), "storing a block");
  }
  hand.placed.push_back({.aside = used_++, .op = &op, .to = to, .block = op.src, .mark = hand.n_marks});
}

/// Behind what a load comes, apart from the step's beginning.
BlockMover::Load BlockMover::load_of(const kv::BlockOp& op, const Hand& hand, const Hand& before) const {
  const auto behind = [&](const Hand& of, std::size_t turn) -> Load {
    const auto last = std::ranges::find(of.placed.rbegin(), of.placed.rend(), op.dst, &Store::block);
    if (last == of.placed.rend() || last->mark >= of.n_marks) return {.op = &op};
    return {&of.marks[last->mark], turn + last->mark, &op};
  };
  if (copies_) return {&hand.marks[hand.n_marks - 1], 0, &op};
  const Load of_this = behind(hand, 1 + before.n_marks);
  if (of_this.behind != nullptr || !before.direct) return of_this;
  return behind(before, 1);
}

/// Operations that follow each other. Those come first whose blocks are free first. REQUIRES: all stores before them
/// are on their way.
void BlockMover::load(std::span<const kv::BlockOp> ops, const Batch& batch, std::uint64_t step) {
  Hand& hand = hand_of(step);
  const Hand& before = hand_of(step + 1);
  loads_.clear();
  for (const kv::BlockOp& op : ops) loads_.push_back(load_of(op, hand, before));
  std::ranges::sort(loads_, {}, [](const Load& l) { return std::pair(l.nth, l.op); });
  const CudaEvent* followed = nullptr;
  for (const Load& each : loads_) {
    if (each.behind != followed) in_.follow(*each.behind);
    followed = each.behind;
    std::byte* const from = batch.outside[each.op->outside].data();
    const auto stores_there = [&](const Hand& of) {
      return std::ranges::find(of.placed, from, &Store::to) != of.placed.end();
    };
    if (stores_there(hand)) {
      hand.stored.record(out_);
      in_.follow(hand.stored);
    } else if (stores_there(before)) {
      in_.follow(before.stored);
    }
    check(cudaMemcpyAsync(at(each.op->dst), from, bytes_of(*each.op), cudaMemcpyHostToDevice, in_.get()),
          "loading a block");
  }
}

void BlockMover::run(const Batch& batch, std::uint64_t step, const Stream& steps) {
  using enum kv::BlockOp::Kind;
  const Hand& before = hand_of(step + 1);
  Hand& hand = hand_of(step);
  const std::span<const kv::BlockOp> ops = batch.block_ops;
  hand.placed.clear();
  hand.n_marks = n_sent_ = used_ = 0;
  hand.stores = hand.loads = copies_ = false;
  hand.direct = batch.n_rows() == 0 && std::ranges::find(ops, kCopy, &kv::BlockOp::kind) == ops.end();
  if (before.loads) steps.follow(before.loaded);  // what it loads is there
  if (before.stores && before.direct && !hand.direct) steps.follow(before.stored);
  if (ops.empty()) return;
  hand.begun.record(steps);
  out_.follow(hand.begun);
  in_.follow(hand.begun);
  bool loads = false;
  for (std::size_t i = 0; i < ops.size();) {
    const kv::BlockOp& op = ops[i];
    if (op.kind == kLoad) {
      flush(step, steps);
      if (copies_) mark(hand, steps);
      const auto end = std::find_if(ops.begin() + static_cast<std::ptrdiff_t>(i), ops.end(),
                                    [](const kv::BlockOp& o) { return o.kind != kLoad; });
      const auto n = static_cast<std::size_t>(end - ops.begin()) - i;
      load(ops.subspan(i, n), batch, step);
      hand.loads = loads = true;
      i += n;
      continue;
    }
    if (loads) {  // rare: what was loaded may be what this one reads or writes
      hand.loaded.record(in_);
      steps.follow(hand.loaded);
      out_.follow(hand.loaded);
      loads = false;
    }
    if (op.kind == kStore) {
      hand.stores = true;
      store(op, batch.outside[op.outside].data(), step, steps);
    } else if (op.n_slots > 0 &&
               op.src != op.dst) {  // all of it: slots behind a copy's are not seen before they are written
      copies_ = true;
      check(cudaMemcpyAsync(at(op.dst), at(op.src), bytes_of(op), cudaMemcpyDeviceToDevice, steps.get()),
            "copy of a block");
    }
    ++i;
  }
  flush(step, steps);
  if (hand.stores) hand.stored.record(out_);
  if (hand.loads) hand.loaded.record(in_);
}

void BlockMover::wait(std::uint64_t step) const {
  const Hand& hand = hands_[step % kHands];
  if (hand.stores) hand.stored.wait();
  if (hand.loads) hand.loaded.wait();
}

}  // namespace coppice::executor::cuda
