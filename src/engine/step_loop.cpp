#include "engine/step_loop.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/refusals.h"
#include "engine/spare.h"
#include "engine/stopwatch.h"

namespace coppice::engine {

namespace {

constexpr int kAnswersPart = 20;  // of the engine's time, answers to those who watch take one such part at most
/// Between two of them: on a busy machine one took 0.3 s, and the next came 6 s later.
constexpr std::chrono::seconds kLongestPause{1};
constexpr std::size_t kScoredBytes = std::size_t{64} << 20;  // of logits in a step, besides those to sample from

EngineConfig completed(EngineConfig config, const executor::ExecutorInfo& info) {
  if (config.context_length <= 0) config.context_length = info.context_length;
  const std::size_t row_bytes = sizeof(float) * static_cast<std::size_t>(std::max(info.n_vocab, 1));
  if (config.scored_rows <= 0)
    config.scored_rows = static_cast<int>(std::max(kScoredBytes / row_bytes, std::size_t{1}));
  return config;
}

/// REQUIRES: not the pool.
tier::StoreKind store_kind_of(CacheTier which) {
  switch (which) {
    case CacheTier::kHost:
      return tier::StoreKind::kHost;
    case CacheTier::kDisk:
      return tier::StoreKind::kDisk;
    default:
      return tier::StoreKind::kRedis;
  }
}

std::int64_t missing(const kv::NoRoom& why) {
  return why.needed - why.available;
}

}  // namespace

StepLoop::StepLoop(Mailbox& mailbox, kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
    : mailbox_(mailbox),
      cache_(std::move(cache)),
      config_(completed(std::move(config), executor.info())),
      sink_(std::move(sink)),
      tiers_(cache_, executor.info(), config_.now, [&mailbox] { mailbox.wake(); }),
      scheduler_(cache_, tiers_, config_, figures_, executor.depth()),
      runner_(executor),
      sleeper_(runner_, config_),
      requests_(scheduler_, config_, figures_),
      prefixes_(cache_, config_),
      reader_(scheduler_, requests_, figures_),
      watch_(cache_, config_.check_every, config_.on_finding),
      viewer_(cache_),
      starts_({cache_, tiers_, scheduler_, requests_, prefixes_, viewer_, rates_, figures_}),
      traffic_(cache_, tiers_, scheduler_, runner_, config_) {
  specs_.reserve(static_cast<std::size_t>(std::max(config_.max_batch, 1)));
  answers_.reserve(kOrdersInStep);
  publish_snapshot();
}

bool StepLoop::step() {
  COPPICE_ASSERT(engine_thread_.mine());
  now_ = config_.now();
  const bool stop = mailbox_.drain(commands_, requests_.size() == 0 || now_ >= next_answer_);
  if (stop) shut_down();
  if (prefixes_.expire(now_)) publish_snapshot();
  spare([&] { cache_.tell_all(); });  // if who observes it wants that
  scheduler_.arrive(now_);            // what the store's threads have brought is taken
  const bool idle =
      commands_.empty() && requests_.size() == 0 && !scheduler_.flying().step && !tiers_.ready() && !runner_.waking();
  if (idle && !stop && sleeper_.rest(now_)) publish_snapshot();
  if (stop || idle) return false;
  const auto start = Clock::now();
  const std::int64_t steps = figures_.steps;
  viewer_.set_time(now_);

  obey();                                    // new requests enter the queue, cancelled ones end
  expire();                                  // so do those whose time is over
  take_loaded();                             // what a store has brought counts as computed
  resume();                                  // rows that waited for their samples get their tokens
  if (scheduler_.flying_wakes()) collect();  // those who wait for its blocks come with the next one
  admit();                                   // the queue's first get blocks
  compute();  // a batch of rows goes through the model; what comes of it goes to tokens, scores, embeddings

  const double seconds = seconds_since(start);
  figures_.step_seconds += seconds;
  if (figures_.steps > steps) figures_.step_duration_seconds.add(seconds);
  if (figures_.steps > steps || requests_.size() > 0) sleeper_.worked(now_);
  watch_.stepped(figures_);
  publish_snapshot();
  answer();   // who watches is shown what the step has left; who gave an order sees it in the figures, too
  deliver();  // the step's events go out
  const bool rests = figures_.steps == steps && !scheduler_.flying().step && !tiers_.ready() && !runner_.waking();
  const bool waits = tiers_.waits_until(now_).has_value() ||
                     std::ranges::any_of(scheduler_.running(), [](const Sequence* s) { return s->logits != nullptr; });
  return !(rests && waits);
}

void StepLoop::end(OpenRequest& open, Outcome outcome) {
  outcome.at = now_;
  requests_.end(open, outcome);
}

void StepLoop::obey() {
  newcomers_.clear();
  for (auto& request : commands_.requests) {
    OpenRequest& opened = requests_.open(std::move(request));
    attempt(opened, [&] { open(opened); });
  }
  for (const RequestId id : commands_.cancelled) {
    OpenRequest* open = requests_.find(id);
    if (open != nullptr) attempt(*open, [&] { end(*open, {.kind = Outcome::Kind::kCancelled}); });
  }
  for (auto& [order, reply] : commands_.orders) obey(order, reply);
  if (commands_.tiers) attach(std::move(*commands_.tiers));
  if (commands_.settle) traffic_.begin_to_settle(*commands_.settle);
  commands_.tiers.reset();
  commands_.settle.reset();
  commands_.requests.clear();
  commands_.cancelled.clear();
  commands_.orders.clear();
}

void StepLoop::obey(PrefixCommand& order, Reply<PrefixAnswer>& reply) {
  const std::optional<CacheTier> only = order.tier;
  spare([&] {
    PrefixAnswer answer;
    if (order.kind == PrefixCommand::Kind::kKeepPayers) spare([&] { traffic_.revoke(std::move(order.revoked)); });
    if (order.kind == PrefixCommand::Kind::kReset && only != CacheTier::kPool) {
      const bool is_there = traffic_.forget(only ? std::optional(store_kind_of(*only)) : std::nullopt);
      answer.absent = !is_there;
    }
    if (!only || only == CacheTier::kPool) answer = prefixes_.obey(std::move(order));
    answers_.emplace_back(std::move(reply), std::make_shared<const PrefixAnswer>(std::move(answer)));
  });
}

void StepLoop::attach(TierConfig&& tiers) {
  std::shared_ptr<tier::Store> store = tiers.store;
  if (!traffic_.attach(std::move(tiers))) return;
  const check::Lock lock(published_mutex_);
  store_ = std::move(store);
}

std::optional<Clock::time_point> StepLoop::waits_until() const {
  COPPICE_ASSERT(engine_thread_.mine());
  std::optional<Clock::time_point> first;
  const auto add = [&](std::optional<Clock::time_point> at) {
    if (at) first = std::min(first.value_or(*at), *at);
  };
  add(prefixes_.next_expiry());
  add(tiers_.waits_until(now_));
  if (requests_.size() == 0) add(sleeper_.due());
  return first;
}

void StepLoop::open(OpenRequest& open) {
  if (open.weight > config_.max_weight) return end(open, too_heavy(open, config_.max_weight));
  if (open.charge == 0) return end(open, with_retry(no_weight_left(config_.max_weight)));
  if (auto refusal = no_media(open.request, runner_.info())) return end(open, std::move(*refusal));
  if (auto objection = scheduler_.objection(open.request)) {
    return end(open, refused(objection->refusal, std::move(objection->message)));
  }
  requests_.watch_deadline(open);
  newcomers_.push_back(open.request.id);
  scheduler_.enqueue(*open.sequences.front(), now_);
}

/// By then the queue should have drained.
Outcome StepLoop::with_retry(Outcome queue_full) const {
  queue_full.retry_seconds = rates_.drain_seconds(std::min(waiting(), config_.max_waiting), now_);
  return queue_full;
}

void StepLoop::expire() {
  while (OpenRequest* open = requests_.overdue(now_)) attempt(*open, [&] { end(*open, out_of_time(*open, now_)); });
}

void StepLoop::resume() {
  std::vector<Sequence*> waiting;  // whoever ends leaves the list of those that run
  for (Sequence* sequence : scheduler_.running())
    if (sequence->logits) waiting.push_back(sequence);
  for (Sequence* sequence : waiting) {
    if (sequence->logits) attempt(*sequence->request, [&] { reader_.resume(*sequence, now_); });
  }
}

void StepLoop::admit() {
  queue_was_empty_ = waiting() <= newcomers_.size();
  scheduler_.begin_step(rates_.prefill_tokens_per_second(), now_);
  while (Sequence* next = scheduler_.next()) attempt(*next->request, [&] { admit_next(*next); });
  turn_away();
}

void StepLoop::admit_next(Sequence& sequence) {
  auto turn = scheduler_.admit(sequence);
  const auto room_is_made = [&](const kv::NoRoom& why) {
    return why.never ? prefixes_.give_way(sequence.request->request, missing(why)) : scheduler_.make_way(sequence);
  };
  while (!turn && room_is_made(turn.error())) turn = scheduler_.admit(sequence);
  if (turn) {
    if (*turn == Scheduler::Turn::kRuns) starts_.begin(sequence, queue_was_empty_, now_);
    return;
  }
  const kv::NoRoom& why = turn.error();
  if (why.never) return end_for_room(sequence, no_blocks(why.needed, why.available));
  scheduler_.hold_up(sequence);
}

// What has come is in the pool. Who loads no more goes on by computing.
void StepLoop::take_loaded() {
  if (!tiers_.on()) return;
  for (Sequence* sequence : traffic_.loading()) {
    if (!sequence->loads()) continue;  // its request has failed meanwhile
    attempt(*sequence->request, [&] {
      if (const auto tokens = scheduler_.take_loaded(*sequence)) starts_.loaded(*sequence, *tokens, now_);
    });
  }
  scheduler_.wake();
}

// For those who have just come, at most: preempted requests may stretch the queue. One goes of the key that has most in
// the queue: a newcomer, or else the last that was let in.
void StepLoop::turn_away() {
  std::map<std::string_view, int> counts;
  if (waiting() > config_.max_waiting && scheduler_.keys() > 1) spare([&] { counts = requests_.never_admitted(); });
  for (; waiting() > config_.max_waiting && !newcomers_.empty(); newcomers_.pop_back()) {
    OpenRequest* open = requests_.find(newcomers_.back());
    if (open == nullptr || open->admitted_before) continue;
    const auto most = std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; });
    if (most != counts.end() && counts[open->key()] < most->second) {
      if (OpenRequest* last = scheduler_.last_never_admitted(most->first)) open = last;
    }
    if (most != counts.end()) --counts[open->key()];
    attempt(*open, [&] { end(*open, with_retry(queue_full(config_.max_waiting))); });
  }
}

// There will never be room for its next token.
void StepLoop::end_for_room(Sequence& sequence, Outcome too_long) {
  OpenRequest& open = *sequence.request;
  if (!open.streamed()) return end(open, std::move(too_long));
  requests_.add(sequence, {}, sampling::Finish::kLength);
}

void StepLoop::publish_snapshot() {
  figures_.cache = cache_.stats();
  figures_.tiers = tiers_.figures();
  figures_.loading_requests = tiers_.loading();
  figures_.settled = tiers_.outflow().empty();
  figures_.pin_changes = prefixes_.changes();
  figures_.pins_given_up = prefixes_.given_up();
  figures_.running_requests = scheduler_.running_requests();
  figures_.running_sequences = scheduler_.running_samples();
  figures_.waiting_requests = static_cast<int>(requests_.size()) - figures_.running_requests;
  figures_.keys = static_cast<int>(scheduler_.keys());
  figures_.following_requests = scheduler_.following();
  figures_.forward_seconds = runner_.forward_seconds();
  figures_.asleep = runner_.asleep();
  figures_.wakes = runner_.wakes();
  figures_.waking_seconds = runner_.waking_seconds();
  figures_.device = runner_.device_figures();
  figures_.threads = runner_.thread_figures();
  figures_.prefill_tokens_per_second = rates_.prefill_tokens_per_second();
  const check::Lock lock(published_mutex_);
  published_ = figures_;
}

// However many ask, and however large their pictures are, those whose text is computed hardly wait for them.
void StepLoop::answer() {
  for (auto& [reply, answer] : answers_) reply.give(std::move(answer));
  answers_.clear();
  if (commands_.questions.empty()) return;
  const auto begin = config_.now();
  auto& [question, reply] = commands_.questions.front();
  spare([&] { reply.give(std::make_shared<const View>(viewer_.answer(question, requests_))); });
  commands_.questions.clear();
  const auto end = config_.now();
  next_answer_ = end + std::min<Clock::duration>((kAnswersPart - 1) * (end - begin), kLongestPause);
}

void StepLoop::deliver() {
  for (const auto& [id, ended] : requests_.deliver(sink_)) {
    spare([&] { viewer_.remember(ended); });
    mailbox_.give_back(ended);
  }
}

void StepLoop::shut_down() {
  do {
    for (auto& request : commands_.requests) {
      OpenRequest& late = requests_.open(std::move(request));
      attempt(late, [&] { end(late, refused(Refusal::kShutdown, "the server is shutting down")); });
    }
    if (commands_.settle) traffic_.begin_to_settle(*commands_.settle);
    commands_ = {};
    mailbox_.drain(commands_);  // questions and orders are dropped
  } while (!commands_.empty());
  while (OpenRequest* open = requests_.any()) {
    attempt(*open, [&] { end(*open, {.kind = Outcome::Kind::kCancelled}); });
  }
  let_land();
  deliver();  // nobody waits for what follows
  traffic_.settle();
  publish_snapshot();
  engine_thread_.give_up();
  stopped_ = true;
}

}  // namespace coppice::engine
