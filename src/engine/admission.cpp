// The scheduler's admission: who of the queue begins to run (scheduler.h, invariants 4 to 6).
#include <algorithm>
#include <cassert>

#include "engine/scheduler.h"
#include "kv/reserve_more.h"

namespace coppice::engine {

namespace {

// Most prompt tokens that one step matches against the tree and the leaders: a burst of long prompts must not
// stall those who decode [E5]. What is left over goes on in the next step.
constexpr std::size_t kTokensMatchedPerStep = std::size_t{1} << 18;

// The same for the look at who might pass others, and how far back in the queue it goes. It comes on top, in each step
// in which somebody waits.
constexpr std::size_t kTokensMatchedToPass = std::size_t{1} << 16;
constexpr int kLookAhead = 64;

/// Counts matched tokens. The first prompt is always taken, or one beyond the limit would never get its turn.
class Allowance {
 public:
  explicit Allowance(std::size_t limit) : limit_(limit) {}
  bool take(std::size_t tokens) {
    if (spent_ > 0 && spent_ + tokens > limit_) return false;
    spent_ += tokens;
    return true;
  }

 private:
  std::size_t limit_, spent_ = 0;
};

}  // namespace

void Scheduler::admit(std::vector<NeverFits>& never, Clock::time_point now) {
  if (ready_.empty() || running_samples_ >= max_batch_) return;
  keep_free_ = growth_room();
  if (share_ && max_passes_ > 0 && ready_.size() > 1) admit_hot(now);
  Allowance allowance(kTokensMatchedPerStep);
  for (auto it = ready_.begin(); it != ready_.end();) {
    const bool due = first_is_due();
    Sequence& sequence = due ? **by_arrival_.begin() : **it;
    if (&sequence == *it) ++it;  // its place goes when its turn comes
    in_hand_ = &sequence;
    if (running_samples_ + sequence.n_samples > max_batch_) return;
    if (!allowance.take(sequence.tokens().size())) return;
    const auto turn = take_turn(sequence, share_ ? overlap(sequence).cached : 0, now);
    if (turn) continue;
    if (!turn.error().never && !running_.empty()) return;
    never.push_back({.sequence = &sequence, .room = turn.error()});
    if (due) return;  // until it is gone
  }
}

// Lets hot requests go ahead of those at the front of the queue that are not.
void Scheduler::admit_hot(Clock::time_point now) {
  skipped_.clear();
  Allowance allowance(kTokensMatchedToPass);
  int looked = 0;
  for (auto it = ready_.begin(); it != ready_.end() && looked < kLookAhead && !first_is_due(); ++looked) {
    Sequence& sequence = **it++;
    in_hand_ = &sequence;
    const OpenRequest& open = *sequence.request;
    if (!skipped_.empty() && open.request.priority != skipped_.front()->request->request.priority) return;
    if (!allowance.take(sequence.tokens().size())) return;
    if (running_samples_ + sequence.n_samples <= max_batch_) {
      const auto known = overlap(sequence);
      const auto turn = is_hot(known, sequence.tokens().size())
                            ? take_turn(sequence, known.cached, now)
                            : std::expected<Turn, kv::NoRoom>(std::unexpected(kv::NoRoom{}));
      if (turn && *turn == Turn::kFollows) continue;
      if (turn) {
        if (skipped_.empty()) continue;
        ++figures_.passes;
        for (const Sequence* skipped : skipped_) ++skipped->request->passed;
        if (!std::ranges::all_of(skipped_, [&](const Sequence* s) { return may_be_passed(*s->request); })) return;
        continue;
      }
    }
    if (!may_be_passed(open)) return;
    skipped_.push_back(&sequence);
  }
}

bool Scheduler::may_be_passed(const OpenRequest& open) const {
  return !open.admitted_before && open.passed < max_passes_;
}

bool Scheduler::is_hot(const kv::Overlap& overlap, std::size_t n_tokens) const {
  return overlap.in_use >= cache_.config().block_size && 2 * static_cast<std::size_t>(overlap.in_use) >= n_tokens;
}

// The last token is computed in any case: its logits are needed.
kv::Overlap Scheduler::overlap(const Sequence& sequence) const {
  const auto tokens = sequence.tokens();
  return cache_.overlap(tokens.first(tokens.size() - 1), sequence.request->ns);
}

// Blocks that the running samples lack to grow by one each, beyond what is promised to them.
std::int64_t Scheduler::growth_room() const {
  std::int64_t sum = 0;
  if (!growth_room_) return sum;
  for (const Sequence* sequence : running_) {
    const auto wanted = next_blocks(*sequence) * sequence->n_samples;
    sum += std::max<std::int64_t>(0, wanted - cache_.reserved(sequence->seq));
  }
  return sum;
}

// What one sample takes to grow by a block: one in each group, unless what the window leaves behind pays for it.
std::int64_t Scheduler::next_blocks(const Sequence& sequence) const {
  const std::int32_t bs = cache_.config().block_size;
  const auto blocks_for = [bs](std::int64_t tokens) { return (tokens + bs - 1) / bs; };
  const OpenRequest& open = *sequence.request;
  const std::int32_t length = sequence.computed;
  // The last token needs no slot. max_tokens is the client's: it may be the largest there is.
  const std::int64_t last = std::int64_t{open.usage.prompt_tokens} + open.request.max_tokens - 1;
  if (open.request.max_tokens > 0 && blocks_for(last) <= blocks_for(length)) return 0;
  std::int64_t sum = 0;
  for (const kv::GroupSpec& group : cache_.config().groups) {
    const bool full = group.kind == kv::GroupKind::kFull;
    const std::int64_t held = full ? 0 : blocks_for(length) - std::max(0, length - group.window) / bs;
    sum += full || held <= blocks_for(group.window) ? 1 : 0;
  }
  return sum;
}

// A ready sequence follows a leader, or is admitted if there is room.
std::expected<Scheduler::Turn, kv::NoRoom> Scheduler::take_turn(Sequence& sequence, std::int32_t cached,
                                                                Clock::time_point now) {
  if (share_) {
    if (const auto place = in_flight_.find(sequence, cached)) {
      woken_.clear();
      kv::reserve_more(woken_, static_cast<std::size_t>(in_flight_.followers()) + 1);
      in_flight_.follow(sequence, *place);
      leave_ready(sequence);
      return Turn::kFollows;
    }
  }
  const auto seq = cache_.admit({.prompt = sequence.tokens(),
                                 .ns = sequence.request->ns,
                                 .n_samples = sequence.n_samples,
                                 .keep_free = running_.empty() ? 0 : keep_free_});
  if (!seq) return std::unexpected(seq.error());
  passes_in_a_row_ = *by_arrival_.begin() == &sequence ? 0 : passes_in_a_row_ + 1;
  leave_ready(sequence);
  start(sequence, *seq, now);
  return Turn::kAdmitted;
}

void Scheduler::start(Sequence& sequence, kv::SeqId seq, Clock::time_point now) {
  sequence.seq = seq;
  sequence.state = SequenceState::kPrefill;
  sequence.computed = cache_.lengths(seq).cached_len;
  running_.insert(std::ranges::upper_bound(running_, &sequence, ByRank{}), &sequence);
  running_samples_ += sequence.n_samples;
  if (share_) in_flight_.lead(sequence);
  OpenRequest& open = *sequence.request;
  if (open.admitted_before) {
    ++figures_.resumptions;
    return;
  }
  open.admitted_before = true;
  open.usage.cached_tokens = sequence.computed;
  ++figures_.admissions;
  figures_.prompt_tokens += open.usage.prompt_tokens;
  figures_.cached_tokens += sequence.computed;
  figures_.queue_seconds.add(std::chrono::duration<double>(now - open.request.submitted).count());
  if (!open.request.cache_report) return;
  open.report = std::make_shared<const CacheReport>(
      make_cache_report(cache_, sequence, sequence.computed, running_, figures_.prefill_tokens_per_second));
}

}  // namespace coppice::engine
