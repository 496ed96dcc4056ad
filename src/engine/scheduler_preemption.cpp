// Scheduler: who is preempted, and when. extend(): a sequence that runs needs a block, and there is none:
// preempt_last(). make_way(): a key that holds less than its part lacks places or blocks to be admitted.
// keep_to_places(): samples have parted, and more run than the batch has places. Which key gives: key_shares.h; of its
// sequences it is the last. preempt_one() puts one back into the queue: each way leads there.
#include <algorithm>
#include <utility>

#include "engine/scheduler.h"

namespace coppice::engine {

bool Scheduler::make_way(const Sequence& sequence) {
  if (keys() < 2) return false;
  const auto what = has_place(sequence) ? KeyShares::What::kBlocks : KeyShares::What::kPlaces;
  const KeyShare* const giver = shares_.giver(sequence, what);
  if (giver == nullptr) return false;
  Sequence& last = last_of(*giver);
  if (!shares_.may_give(last, sequence, what)) return false;
  preempt_one(last);
  ++figures_.preemptions;
  shares_.measure(running_);
  return true;
}

// Samples have parted that had one place.
void Scheduler::keep_to_places() {
  while (running_samples_ > max_batch_) {
    const auto most =
        std::ranges::max_element(running_, {}, [](const Sequence* running) { return running->request->share->places; });
    preempt_one(last_of(*(*most)->request->share));
    ++figures_.preemptions;
  }
}

// Gives the sequence's next `rows` tokens slots in the cache, at the cost of the key that holds most. Afterwards rows
// == 0 if it was itself the last of that; false: it is the last runner and the pool is full.
bool Scheduler::extend(Sequence& sequence, std::vector<kv::BlockOp>& ops) {
  const int rows = sequence.rows;
  while (!cache_.extend(sequence.seq, rows, ops)) {
    sequence.rows = 0;                                                              // nothing of it is in the step
    if (running_.size() == 1 && sequence.planned > sequence.computed) return true;  // what runs may free some
    if (!preempt_last()) return false;
    if (!sequence.admitted()) return true;
    sequence.rows = rows;
  }
  return true;
}

// The last request of the key that holds most blocks, or, if it has no other that runs, the last of its samples.
bool Scheduler::preempt_last() {
  if (running_.size() == 1) return false;
  if (keys() > 1) shares_.measure(running_);
  const KeyShare& share = shares_.most_blocks();
  Sequence& last = last_of(share);
  const auto is_other = [&](const Sequence* running) {
    return running->request->share == &share && running->request != last.request;
  };
  if (std::ranges::any_of(running_, is_other)) {
    preempt(*last.request);
  } else {
    preempt_one(last);
    ++figures_.preemptions;
  }
  return true;
}

Sequence& Scheduler::last_of(const KeyShare& share) const {
  return **std::find_if(running_.rbegin(), running_.rend(),
                        [&](const Sequence* running) { return running->request->share == &share; });
}

void Scheduler::preempt(const OpenRequest& last) {
  // From the last of its sequences on.
  for (std::size_t i = running_.size(); i > 0; --i)
    if (running_[i - 1]->request == &last) preempt_one(*running_[i - 1]);
  ++figures_.preemptions;
}

void Scheduler::preempt_one(Sequence& sequence) {
  if (sequence.stage == SequenceStage::kDecode) {
    kv::Text history = sequence.request->request.prompt.text();
    history.append(sequence.out);
    sequence.history = std::move(history);
  }
  sequence.request->share->queue.add(sequence);  // before anything changes: it takes memory
  leave_running(sequence);
  sequence.stage = SequenceStage::kReady;
  sequence.asked = false;
}

}  // namespace coppice::engine
