#include "engine/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "check/assert.h"
#include "engine/steps_in_hand.h"

namespace coppice::engine {

Scheduler::Scheduler(kv::Cache& cache, Tiers& tiers, const EngineConfig& config, Snapshot& figures, int depth)
    : cache_(cache),
      tiers_(tiers),
      figures_(figures),
      share_(cache.config().share),
      has_states_(cache.config().state_pages > 0),
      steps_in_hand_(steps_in_hand(has_states_, depth)),
      max_batch_(std::max(config.max_batch, 1)),
      budget_(config, max_batch_, cache.config().block_size),
      growth_room_(config.growth_room),
      context_length_(config.context_length),
      shares_(cache, config.patience, max_batch_),
      in_flight_(cache.config().block_size, has_states_, max_batch_),
      prefill_shares_(cache, steps_in_hand_, std::max(config.scored_rows, 1), max_batch_) {
  const auto most =
      2 * static_cast<std::size_t>(max_batch_);  // when samples part that had one place, until keep_to_places()
  running_.reserve(most);
  in_turn_.reserve(most);
  for (PlannedStep* step : {&planned_, &flying_}) step->parts.reserve(static_cast<std::size_t>(max_batch_));
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
  const bool answers = request.max_tokens != 0;
  if (context_length_ > 0 && length > context_length_ - (answers ? 1 : 0)) {
    return Objection{Refusal::kTooLong, fmt::format("the prompt has {} tokens and the context holds {}{}", length,
                                                    context_length_, answers ? ", of which the answer needs one" : "")};
  }
  // Beside decodes of all others, and without a step of its own in hand.
  const std::int32_t most_rows = std::min(cache_.config().max_extend, budget_.rows(max_batch_) - max_batch_ + 1);
  for (const kv::MediumSpan& span : request.prompt.text().spans()) {
    if (!span.medium.whole || span.medium.rows <= most_rows) continue;
    return Objection{Refusal::kTooLong,
                     fmt::format("the prompt has a medium of {} rows, which one step must compute, and a step has room "
                                 "for one of {}",
                                 span.medium.rows, most_rows)};
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

void Scheduler::enqueue(Sequence& fresh, Clock::time_point now) {
  shares_.come(*fresh.request);
  budget_.came(fresh.request->key(), now);
  fresh.request->share->queue.add(fresh);
  fresh.stage = SequenceStage::kReady;
}

void Scheduler::begin_step(double tokens_per_second, Clock::time_point now) {
  tokens_per_second_ = tokens_per_second;
  now_ = now;
  shares_.begin_step();
  measured_ = false;
}

Sequence* Scheduler::next() {
  const bool full = running_samples_ >= max_batch_;
  if (full && keys() < 2) return nullptr;
  if (keys() > 1 && !std::exchange(measured_, true)) shares_.measure(running_);
  while (KeyShare* share = shares_.next()) {
    Sequence* next = share->queue.next();
    if (next != nullptr && shares_.may_pass(*next) && (has_place(*next) || keys() > 1)) return next;
    share->waits = true;
  }
  return nullptr;
}

// Where there are other keys, a request with many samples must not wait for as many places: it would hold up all behind
// it.
bool Scheduler::has_place(const Sequence& sequence) const {
  return running_samples_ + (keys() > 1 ? 1 : sequence.n_samples) <= max_batch_;
}

OpenRequest* Scheduler::last_never_admitted(std::string_view key) {
  const KeyShare* const share = shares_.find(key);
  if (share == nullptr) return nullptr;
  const Sequence* last =
      share->queue.last_of([](const Sequence& waiting) { return !waiting.request->admitted_before; });
  return last == nullptr ? nullptr : last->request;
}

std::expected<Scheduler::Turn, kv::NoRoom> Scheduler::admit(Sequence& sequence) {
  const auto tokens = sequence.tokens();
  const kv::Namespace& ns = sequence.request->request.ns;
  std::size_t most_cached = sequence.matchable().size();
  if (share_) {
    const std::int32_t matched = cache_.match(sequence.matchable(), ns);
    if (const auto place = in_flight_.find(sequence, matched)) {
      in_flight_.follow(sequence, *place);
      cache_.keep_state(place->leader->seq, place->needed);  // for it to start on
      cache_.share_tail(place->leader->seq, place->needed);
      return Turn::kFollows;
    }
    if (tiers_.ask(sequence, matched, tokens_per_second_, now_)) {
      sequence.stage = SequenceStage::kAsking;
      return Turn::kAsks;
    }
    most_cached = tiers_.most_cached(sequence, matched);
  }
  if (!has_place(sequence)) return std::unexpected(kv::NoRoom{});
  const auto seq = cache_.admit({.prompt = tokens,
                                 .ns = ns,
                                 .n_samples = sequence.n_samples,
                                 .most_cached = most_cached,
                                 .keep_free = running_.empty() ? 0 : growth_room()});
  if (!seq) {
    kv::NoRoom why = seq.error();
    why.never |= running_.empty();
    return std::unexpected(why);
  }
  KeyShare& share = *sequence.request->share;
  figures_.passes += share.queue.admitted(sequence);
  shares_.admitted(share);
  sequence.seq = *seq;
  sequence.stage = SequenceStage::kPrefill;
  sequence.computed = sequence.planned = cache_.lengths(*seq).cached_len;
  running_.insert(std::ranges::upper_bound(running_, &sequence, ByRank{}), &sequence);
  sequence.places = keys() > 1 ? 1 : sequence.n_samples;
  running_samples_ += sequence.places;
  if (share.places == 0) share.blocks = 0;
  share.places += sequence.places;
  share.blocks += cache_.held(*seq);
  for (const PinWish& wish : sequence.request->request.pins) cache_.keep_state(*seq, wish.tokens);
  if (share_) in_flight_.lead(sequence);
  if (sequence.inflow != nullptr) {
    const bool room = sequence.computed == sequence.inflow->base && cache_.await(*seq, sequence.inflow->end);
    room ? tiers_.begin(sequence, now_) : tiers_.drop(sequence);
  }
  return Turn::kRuns;
}

std::optional<std::int32_t> Scheduler::take_loaded(Sequence& sequence) {
  const Tiers::Came came = tiers_.came(sequence);
  if (const std::int32_t n = came.upto - sequence.computed; n > 0) {
    cache_.arrived(sequence.seq, sequence.row_tokens(sequence.computed, n));
    const std::int32_t bs = cache_.config().block_size;
    for (int g = 0; g < cache_.config().n_groups(); ++g) {
      cache_.set_stored(
          cache_.table(sequence.seq, g)
              .blocks.subspan(static_cast<std::size_t>(sequence.computed / bs), static_cast<std::size_t>(n / bs)),
          true);
    }
    cache_.set_state_stored(cache_.table(sequence.seq, 0).blocks[static_cast<std::size_t>(came.upto / bs - 1)]);
    sequence.computed = sequence.planned = came.upto;
  }
  if (!came.over) return std::nullopt;
  cache_.rewind(sequence.seq, sequence.computed);
  const std::int32_t n = sequence.computed - sequence.inflow->base;
  tiers_.drop(sequence);
  return n;
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

// What one sample takes to grow by a block: one in each group, unless what the window leaves behind pays for it; and a
// state, unless it goes on in the one it has.
std::int64_t Scheduler::next_blocks(const Sequence& sequence) const {
  const std::int32_t bs = cache_.config().block_size;
  const auto blocks_for = [bs](std::int64_t tokens) { return (tokens + bs - 1) / bs; };
  const OpenRequest& open = *sequence.request;
  const std::int32_t length = sequence.planned;
  // The last token needs no slot. max_tokens is the client's: it may be the largest there is.
  const auto& most = open.request.max_tokens;
  if (most && blocks_for(std::int64_t{open.usage.prompt_tokens} + *most - 1) <= blocks_for(length)) return 0;
  std::int64_t sum = 0;
  for (const kv::GroupSpec& group : cache_.config().groups) {
    const bool full = group.kind == kv::GroupKind::kFull;
    const std::int64_t held = full ? 0 : blocks_for(length) - group.first_kept(length) / bs;
    sum += full || held <= blocks_for(group.window) ? 1 : 0;
  }
  if (!has_states_) return sum;
  return sum + (sequence.n_samples > 1 ? cache_.config().state_pages : cache_.state_to_take(sequence.seq));
}

void Scheduler::leave_running(Sequence& sequence) {
  tiers_.drop(sequence);
  if (share_ && sequence.stage == SequenceStage::kPrefill) in_flight_.leave(sequence);
  // With rows that the executor didn't take, nothing behind its last whole block is kept.
  if (sequence.rows > 0) {
    cache_.abandon(sequence.seq);
  } else {
    cache_.finish(sequence.seq);
  }
  std::erase(running_, &sequence);
  running_samples_ -= sequence.places;
  sequence.request->share->places -= sequence.places;
  planned_.forget(sequence);
  flying_.forget(sequence);
  sequence.rows = 0;
  sequence.computed = sequence.planned = 0;
  sequence.draw = -1;
  sequence.held_up = false;
  sequence.logits.reset();
}

void Scheduler::release(Sequence& sequence) {
  switch (sequence.stage) {
    case SequenceStage::kFollowing:
      in_flight_.unfollow(sequence);
      sequence.request->share->queue.remove(sequence);
      break;
    case SequenceStage::kReady:
    case SequenceStage::kAsking:
      tiers_.drop(sequence);
      sequence.request->share->queue.remove(sequence);
      break;
    case SequenceStage::kPrefill:
    case SequenceStage::kDecode:
      leave_running(sequence);
      break;
    case SequenceStage::kEnded:
      break;
  }
  sequence.stage = SequenceStage::kEnded;
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

bool Scheduler::is_full(const OpenRequest& open, std::int32_t length) const {
  const bool answer_full = open.request.max_tokens && length >= *open.request.max_tokens;
  return answer_full || (context_length_ > 0 && open.usage.prompt_tokens + length >= context_length_);
}

// Its next token is known, or the step that runs draws it and it won't be the last.
bool Scheduler::may_decode(const Sequence& sequence) const {
  if (sequence.planned < sequence.known()) return true;
  if (sequence.draw < 0 || sequence.planned - sequence.computed >= cache_.config().max_extend) return false;
  return !is_full(*sequence.request, static_cast<std::int32_t>(sequence.out.size()) + 1);
}

Sequence* Scheduler::plan(std::vector<kv::BlockOp>& ops, double tokens_per_second, Clock::time_point now) {
  plan_no_rows();
  keep_to_places();
  int decodes = 0;
  for (const bool prefills : {false, true}) {
    if (prefills)
      prefill_shares_.grant(running_, budget_.prompt_rows(decodes, tokens_per_second, now),
                            budget_.rows(decodes) - decodes);
    in_turn_ = running_;
    for (Sequence* const each : in_turn_) {
      Sequence& sequence = *each;
      if (!sequence.admitted() || sequence.loads()) continue;  // it may have been preempted meanwhile
      if (sequence.prefills() != prefills) continue;
      if (!prefills) sequence.rows = may_decode(sequence) ? 1 : 0;
      if (sequence.rows == 0) continue;
      if (!extend(sequence, ops)) return &sequence;  // nobody else runs
      if (!prefills) decodes += sequence.rows;
    }
  }
  make_parts();
  return nullptr;
}

bool Scheduler::has_rows() const {
  return std::ranges::any_of(running_, [](const Sequence* each) { return each->admitted() && !each->loads(); });
}

void Scheduler::plan_no_rows() {
  planned_.clear();
  for (Sequence* sequence : running_) sequence->rows = 0;
}

// Of the tokens that the device draws in the planned step, which one is the sequence's; -1: the host draws it, or
// nobody.
int Scheduler::next_draw(const Sequence& sequence) {
  const Request& request = sequence.request->request;
  if (!ahead() || sequence.n_samples > 1 || request.max_tokens == 0) return -1;
  const auto needs = request.samples[static_cast<std::size_t>(sequence.sample)]->needs();
  return needs == sampling::Generation::Needs::kToken ? planned_.draws++ : -1;
}

// Nothing here throws.
void Scheduler::make_parts() {
  for (Sequence* sequence : running_) {
    const int drawn = std::exchange(sequence->draw, -1);
    if (sequence->rows == 0) continue;
    const bool prefills = sequence->prefills();
    StepPart part{.sequence = sequence, .first = sequence->planned, .rows = sequence->rows};
    if (prefills) {
      const auto scored = sequence->scored_in(part.rows);
      const int pooled = sequence->pooled_in(part.rows);
      part.wanted.add({.purpose = Purpose::kScore, .first = scored.first, .n = scored.n});
      part.wanted.add({.purpose = Purpose::kPool, .first = part.rows - pooled, .n = pooled});
      planned_.prompt_rows += part.rows;
    } else if (sequence->planned == sequence->known()) {
      part.drawn = drawn;
    }
    sequence->planned += part.rows;
    part.completes = !sequence->prefills();
    if (part.completes && part.wanted.find(Purpose::kPool) == nullptr)
      part.wanted.add(
          {.purpose = Purpose::kSample, .first = part.rows - 1, .draw = sequence->draw = next_draw(*sequence)});
    planned_.rows += part.rows;
    planned_.parts.push_back(part);
  }
}

void Scheduler::submitted() {
  for (Sequence* sequence : running_) sequence->rows = 0;
}

void Scheduler::launch() {
  COPPICE_ASSERT(!flying_.step);
  std::swap(planned_, flying_);
  planned_.clear();
}

void Scheduler::computed(double seconds) {
  budget_.stepped(flying_.prompt_rows, flying_.rows, seconds);
  for (const StepPart& part : flying_.parts) {
    if (part.sequence == nullptr) continue;
    cache_.publish(part.sequence->seq, part.sequence->row_tokens(part.first, part.rows));
  }
  for (const StepPart& part : flying_.parts) {  // nothing here throws
    Sequence* const sequence = part.sequence;
    if (sequence == nullptr) continue;
    COPPICE_ASSERT(sequence->computed == part.first);
    sequence->computed += part.rows;
    COPPICE_ASSERT(cache_.lengths(sequence->seq).computed_len == sequence->computed);
    if (sequence->stage == SequenceStage::kDecode) continue;
    // What a resumed sequence had generated counts as generated, not as computed.
    const auto prompt = static_cast<std::int32_t>(sequence->request->request.prompt.size());
    figures_.computed_tokens += std::max(0, std::min(sequence->computed, prompt) - part.first);
    if (!part.completes) continue;
    if (share_) in_flight_.leave(*sequence);
    sequence->stage = SequenceStage::kDecode;
    sequence->history = {};
  }
  in_flight_.wake();
}

void Scheduler::part(Sequence& sequence, Sequence& sibling) {
  COPPICE_ASSERT(sequence.n_samples > 1 && sequence.stage == SequenceStage::kDecode);
  sibling.seq = cache_.fork(sequence.seq);
  sibling.stage = SequenceStage::kDecode;
  sibling.computed = sibling.planned = sequence.computed;
  sibling.n_samples = 1;
  --sequence.n_samples;
  sibling.places = 1;
  if (sequence.places > 1) {
    --sequence.places;
  } else {
    ++running_samples_;
    ++sequence.request->share->places;
  }
  running_.insert(std::ranges::upper_bound(running_, &sibling, ByRank{}), &sibling);
}

}  // namespace coppice::engine
