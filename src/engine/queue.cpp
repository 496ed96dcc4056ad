#include "engine/queue.h"

#include <algorithm>
#include <functional>
#include <new>

namespace coppice::engine {

namespace {

// Most tokens of prompts that one step matches against the tree: a burst of long prompts must not stall those who
// decode. What is left over goes on in the next step. A sequence counts kOverhead tokens more than it has.
constexpr std::size_t kTokensPerStep = std::size_t{1} << 20;
constexpr std::size_t kOverhead = 256;

bool is_ready(const Sequence* sequence) {
  return sequence->stage == SequenceStage::kReady;
}

}  // namespace

bool Queue::admitted(Sequence& sequence) {
  const bool its_turn = out_of_turn_ == patience_;
  const bool ahead = !its_turn && *std::ranges::find_if(waiting_, is_ready) != &sequence;
  out_of_turn_ = its_turn ? 0 : out_of_turn_ + 1;
  remove(sequence);
  return ahead;
}

Sequence* Queue::next() {
  if (out_of_turn_ == patience_) return first_arrival();
  do {
    for (; !candidates_.empty(); candidates_.pop_back()) {
      if (is_ready(candidates_.back().sequence)) return candidates_.back().sequence;
    }
  } while (look());
  return nullptr;
}

Sequence* Queue::first_arrival() {
  Sequence* first = nullptr;
  for (Sequence* sequence : waiting_) {
    if (is_ready(sequence) && (first == nullptr || ByArrival{}(sequence, first))) first = sequence;
  }
  return first != nullptr && may_look_at(*first) ? first : nullptr;
}

// The first `patience` + 1 that are ready become candidates: nobody behind them may pass the first.
bool Queue::look() {
  const auto most = static_cast<std::size_t>(patience_) + 1;
  for (auto it = waiting_.begin(); it != waiting_.end() && candidates_.size() < most; ++it) {
    Sequence& sequence = **it;
    if (!is_ready(&sequence)) continue;
    if (!may_look_at(sequence)) break;
    const bool ahead = sequence.request->admitted_before || is_hot(sequence);
    const auto nth = static_cast<std::int64_t>(sequence.request->nth_of_key);
    candidates_.push_back({.sequence = &sequence, .counts_as = ahead ? nth - patience_ : nth});
  }
  std::ranges::sort(candidates_, std::greater<>{}, &Candidate::key);
  return !candidates_.empty();
}

// The first in a step always, or a prompt beyond the limit would never get its turn.
bool Queue::may_look_at(const Sequence& sequence) {
  if (!cache_.config().share) return true;  // nothing is matched
  const std::size_t n = sequence.tokens().size() + kOverhead;
  if (looked_at_ > 0 && looked_at_ + n > kTokensPerStep) return false;
  looked_at_ += n;
  return true;
}

bool Queue::is_hot(const Sequence& sequence) const noexcept try {
  if (!cache_.config().share) return false;
  const auto tokens = sequence.tokens();
  const auto usable = static_cast<std::int32_t>(sequence.matchable().size()) + 1;
  const std::int32_t in_use = std::min(cache_.overlap(tokens, sequence.request->request.ns).in_use, usable);
  return in_use >= cache_.config().block_size && 2 * static_cast<std::size_t>(in_use) >= tokens.size();
} catch (const std::bad_alloc&) {
  return false;
}

}  // namespace coppice::engine
