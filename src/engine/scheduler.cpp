#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <exception>
#include <utility>

namespace coppice::engine {

namespace {

// A step that also decodes gives prompts this part of its budget at most: running streams wait for the whole step.
// Prompts lose little: in a matrix product of 256 rows a row costs a CPU no more than in one of 512, so the smaller
// steps only add the decodes' own time. A quarter makes streams steadier still, but those who wait for their first
// token wait longer behind them.
constexpr int kPromptPartBesideDecodes = 2;

template <class Set>
typename Set::node_type place_for(Sequence& sequence) {
  Set one{&sequence};
  return one.extract(one.begin());
}

}  // namespace

Scheduler::Scheduler(kv::Cache& cache, const EngineConfig& config, Snapshot& figures)
    : cache_(cache),
      figures_(figures),
      share_(cache.config().share),
      max_batch_(std::max(config.max_batch, 1)),
      step_tokens_(std::max(config.step_tokens, max_batch_ + 1)),
      growth_room_(config.growth_room),
      max_passes_(config.max_passes),
      context_length_(config.context_length),
      in_flight_(cache.config().block_size, max_batch_) {
  running_.reserve(static_cast<std::size_t>(max_batch_));
}

std::optional<Scheduler::Objection> Scheduler::objection(const Request& request) const {
  const auto n = static_cast<int>(request.samples.size());
  const auto length = static_cast<std::int32_t>(request.prompt.size());
  if (length == 0) return Objection{Refusal::kTooLong, "the prompt is empty"};
  if (n == 0) return Objection{Refusal::kTooManySamples, "no sample is asked for"};
  if (n > max_batch_) {
    return Objection{Refusal::kTooManySamples,
                     fmt::format("{} samples are asked for, but at most {} sequences run at once", n, max_batch_)};
  }
  if (context_length_ > 0 && length >= context_length_) {
    return Objection{Refusal::kTooLong,
                     fmt::format("the prompt has {} tokens and the context holds {}, of which the answer needs one",
                                 length, context_length_)};
  }
  const auto needed = cache_.blocks_needed(length, n);
  const auto total = cache_.stats().total;
  if (needed > total) {
    const bool fits_once = cache_.blocks_needed(length, 1) <= total;
    return Objection{
        fits_once ? Refusal::kTooManySamples : Refusal::kTooLong,
        fmt::format("a prompt of {} tokens with {} samples needs {} KV blocks of {} tokens and the pool has {}", length,
                    n, needed, cache_.config().block_size, total)};
  }
  return std::nullopt;
}

void Scheduler::enqueue(Sequence& fresh) {
  fresh.rank_place = place_for<Ranked>(fresh);
  fresh.arrival_place = place_for<Arrived>(fresh);
  make_ready(fresh);
}

void Scheduler::make_ready(Sequence& sequence) {
  ready_.insert(std::move(sequence.rank_place));
  by_arrival_.insert(std::move(sequence.arrival_place));
}

void Scheduler::make_ready(const std::vector<Sequence*>& woken) {
  for (Sequence* sequence : woken) make_ready(*sequence);
}

void Scheduler::leave_ready(Sequence& sequence) {
  sequence.rank_place = ready_.extract(&sequence);
  sequence.arrival_place = by_arrival_.extract(&sequence);
}

void Scheduler::leave_running(Sequence& sequence, Release how) {
  if (share_ && sequence.state == SequenceState::kPrefill) {
    woken_.clear();
    in_flight_.leave(sequence, woken_);
    make_ready(woken_);
  }
  if (how == Release::kDrop) {
    cache_.abandon(sequence.seq);
  } else {
    cache_.finish(sequence.seq);
  }
  std::erase(running_, &sequence);
  running_samples_ -= sequence.n_samples;
  sequence.rows = 0;
  sequence.computed = 0;
}

void Scheduler::release(Sequence& sequence, Release how) {
  switch (sequence.state) {
    case SequenceState::kFollowing:
      in_flight_.unfollow(sequence);
      break;
    case SequenceState::kReady:
      leave_ready(sequence);
      break;
    case SequenceState::kPrefill:
    case SequenceState::kDecode:
      leave_running(sequence, how);
      break;
    case SequenceState::kEnded:
      break;
  }
  sequence.state = SequenceState::kEnded;
}

int Scheduler::running_requests() const {
  int requests = 0;
  const OpenRequest* last = nullptr;
  for (const Sequence* sequence : running_) {
    if (sequence->request != last) ++requests;
    last = sequence->request;
  }
  return requests;
}

int Scheduler::prompt_rows() const {
  int rows = 0;
  for (const Sequence* sequence : running_) {
    if (sequence->state == SequenceState::kPrefill) rows += sequence->rows;
  }
  return rows;
}

// The last request, or, if it runs alone, the last of its samples.
bool Scheduler::preempt_last() {
  if (running_.size() == 1) return false;
  const OpenRequest* last = running_.back()->request;
  auto victims = std::ranges::find(running_, last, &Sequence::request);
  if (victims == running_.begin()) victims = running_.end() - 1;
  std::for_each(victims, running_.end(), [](Sequence* sequence) {  // first: it takes memory
    if (sequence->out.empty()) return;
    sequence->history = sequence->request->request.prompt;
    sequence->history.insert(sequence->history.end(), sequence->out.begin(), sequence->out.end());
  });
  for (auto n = running_.end() - victims; n > 0; --n) {
    Sequence& sequence = *running_.back();
    // With rows in the step in hand its tail may be a fork whose copy has not run: that must not enter the
    // tree.
    leave_running(sequence, sequence.rows > 0 ? Release::kDrop : Release::kKeep);
    sequence.state = SequenceState::kReady;
    make_ready(sequence);
  }
  ++figures_.preemptions;
  return true;
}

// Appends the sequence's next `rows` tokens to the cache, at the cost of the youngest. Afterwards rows == 0
// if it was itself the youngest; false: it is the last runner and the pool is full.
bool Scheduler::extend(Sequence& sequence, std::vector<kv::CopyOp>& copies) {
  const int rows = sequence.rows;
  sequence.rows = 0;  // nothing of it is in the step until extend() succeeds
  const auto next =
      sequence.state == SequenceState::kDecode
          ? std::span<const kv::Token>(&sequence.out.back(), 1)
          : sequence.tokens().subspan(static_cast<std::size_t>(sequence.computed), static_cast<std::size_t>(rows));
  while (!cache_.extend(sequence.seq, next, copies)) {
    if (!preempt_last()) return false;
    if (!sequence.admitted()) return true;
  }
  sequence.rows = rows;
  return true;
}

// Shares the step's prefill rows out: the first in rank takes up to three quarters of what is left, the next three
// quarters of the rest, and so on, so that a short prompt gets through behind a long one; what nobody wants
// goes to the first again. Those before the first to arrive leave it its part: invariant 3.
void Scheduler::grant_prefill(int budget) {
  const int max_extend = cache_.config().max_extend;
  const int block_size = cache_.config().block_size;
  const auto wanted = [&](const Sequence& sequence) {
    const auto rest = static_cast<int>(sequence.tokens().size()) - sequence.computed;
    return std::min(rest, max_extend);
  };
  const auto prefills = [](const Sequence* sequence) { return sequence->state == SequenceState::kPrefill; };
  auto behind = std::ranges::count_if(running_, prefills);
  const Sequence* first_arrived = nullptr;
  for (const Sequence* sequence : running_) {
    if (prefills(sequence) && (first_arrived == nullptr || ByArrival{}(sequence, first_arrived)))
      first_arrived = sequence;
  }
  int reserved = std::min(block_size, (budget + 3) / 4);
  for (Sequence* sequence : running_) {
    if (!prefills(sequence)) continue;
    if (sequence == first_arrived) reserved = 0;
    const int kept_back = --behind > 0 ? std::min(budget / 4, budget - std::min(budget, block_size)) : 0;
    sequence->rows = std::min(wanted(*sequence), budget - std::max(kept_back, reserved));
    budget -= sequence->rows;
  }
  for (Sequence* sequence : running_) {
    if (budget == 0) break;
    if (!prefills(sequence)) continue;
    const int more = std::min(wanted(*sequence) - sequence->rows, budget);
    sequence->rows += more;
    budget -= more;
  }
}

// Rows for prompts in a step that has `decodes` rows of decoding sequences. At least one: invariant 3.
int Scheduler::prefill_budget(int decodes) const {
  const int rest = step_tokens_ - decodes;
  if (decodes == 0) return rest;
  return std::min(rest, std::max(step_tokens_ / kPromptPartBesideDecodes, cache_.config().block_size));
}

void Scheduler::plan(std::vector<kv::CopyOp>& copies, std::vector<Sequence*>& pool_full, std::vector<Sequence*>& lost) {
  for (Sequence* sequence : running_) sequence->rows = 0;
  int decodes = 0;
  for (const auto state : {SequenceState::kDecode, SequenceState::kPrefill}) {
    if (state == SequenceState::kPrefill) grant_prefill(prefill_budget(decodes));
    // Preemption takes sequences off the end of running_, never before the one in hand.
    for (std::size_t i = 0; i < running_.size();) {
      Sequence& sequence = *running_[i];
      ++i;
      if (sequence.state != state) continue;
      if (state == SequenceState::kDecode) sequence.rows = 1;
      if (sequence.rows == 0) continue;
      try {
        if (!extend(sequence, copies)) {
          release(sequence, Release::kKeep);
          pool_full.push_back(&sequence);
          --i;
        }
      } catch (const std::exception&) {
        release(sequence, Release::kDrop);
        lost.push_back(&sequence);
        --i;
      }
      if (state == SequenceState::kDecode) decodes += sequence.rows;
    }
  }
  for (Sequence* sequence : running_) {
    const bool decoding = sequence->state == SequenceState::kDecode;
    const auto end = static_cast<std::size_t>(sequence->computed + sequence->rows);
    sequence->sampled = sequence->rows > 0 && (decoding || end == sequence->tokens().size());
  }
}

void Scheduler::computed(std::vector<Sequence*>& lost) {
  woken_.clear();
  for (Sequence* sequence : running_) {
    if (sequence->rows == 0) continue;
    try {
      cache_.publish(sequence->seq);
    } catch (const std::exception&) {
      lost.push_back(sequence);
      continue;
    }
    sequence->computed += sequence->rows;
    assert(cache_.lengths(sequence->seq).computed_len == sequence->computed);
    if (sequence->state == SequenceState::kPrefill) {
      // What a resumed sequence had generated counts as generated, not as computed.
      const auto prompt = static_cast<std::int32_t>(sequence->request->request.prompt.size());
      const std::int32_t begin = sequence->computed - sequence->rows;
      figures_.computed_tokens += std::max(0, std::min(sequence->computed, prompt) - begin);
      if (share_) in_flight_.published(*sequence, woken_);
      if (sequence->sampled) {
        if (share_) in_flight_.leave(*sequence, woken_);
        sequence->state = SequenceState::kDecode;
        sequence->history = {};
      }
    }
    sequence->rows = 0;
  }
  make_ready(woken_);
}

void Scheduler::part(Sequence& sequence, Sequence& sibling) {
  assert(sequence.n_samples > 1 && sequence.state == SequenceState::kDecode);
  // A sibling may be preempted later: it needs its own places in the queue then.
  sibling.rank_place = place_for<Ranked>(sibling);
  sibling.arrival_place = place_for<Arrived>(sibling);
  sibling.seq = cache_.fork(sequence.seq);
  sibling.state = SequenceState::kDecode;
  sibling.computed = sequence.computed;
  sibling.n_samples = 1;
  --sequence.n_samples;
  running_.insert(std::ranges::upper_bound(running_, &sibling, ByRank{}), &sibling);
}

}  // namespace coppice::engine
