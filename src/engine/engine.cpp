#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <stdexcept>
#include <utility>
#include <variant>

#include "engine/batch_builder.h"
#include "engine/engine_impl.h"
#include "kv/reserve_more.h"

namespace coppice::engine {

namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

EngineConfig with_context(EngineConfig config, const executor::ExecutorInfo& info) {
  if (config.context_length <= 0) config.context_length = info.context_length;
  return config;
}

}  // namespace

Engine::Impl::Impl(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
    : cache_(std::move(cache)),
      executor_(executor),
      config_(with_context(std::move(config), executor.info())),
      sink_(std::move(sink)),
      scheduler_(cache_, config_, figures_),
      watch_(cache_, config_.check_every, config_.on_finding) {
  pool_full_.reserve(static_cast<std::size_t>(std::max(config_.max_batch, 1)));
  lost_.reserve(pool_full_.capacity());
  publish_snapshot();
}

// What is done for one request alone stands in attempt(), or the scheduler says which one it was: so memory that runs
// out, or another exception of their own work, ends requests, not the loop. What stands outside takes no memory, or is
// done again in the next step: commands that could not be obeyed, endings (fail()), events that could not be delivered.
bool Engine::Impl::step() {
  if (mailbox_.drain(commands_)) return !shut_down();
  if (commands_.empty() && open_.empty() && outbox_.empty()) return false;
  const auto start = Clock::now();
  const auto now = config_.now();
  end_failing();
  obey();
  expire_deadlines(now);
  admit(now);

  batch_.copies.clear();
  pool_full_.clear();
  lost_.clear();
  scheduler_.plan(batch_.copies, pool_full_, lost_);
  fail_lost();
  for (Sequence* sequence : pool_full_) {
    OpenRequest& open = *sequence->request;
    if (open.closed || open.failing) continue;
    attempt(open, [&] {
      if (open.streamed) return end_sample(*sequence, sampling::Finish::kLength);
      refuse(open, Refusal::kTooLong, "the KV pool is too small for this prompt and one token");
    });
  }
  try {
    build_batch(cache_, scheduler_.running(), batch_, sampled_);
  } catch (const std::exception& error) {
    fail_step(reason(error));
    batch_.tokens.clear();
  }
  publish_snapshot();  // a step may take seconds: who looks meanwhile must see what it holds
  if (batch_.n_rows() > 0) forward();

  const double seconds = seconds_since(start);
  figures_.step_seconds += seconds;
  if (batch_.n_rows() > 0) figures_.step_duration_seconds.add(seconds);
  watch_.stepped(figures_);
  publish_snapshot();
  deliver();
  closed_.clear();
  return true;
}

void Engine::Impl::deliver() {
  try {
    outbox_.deliver(sink_);
  } catch (const std::exception&) {
    // Once more after the next step.
  }
}

void Engine::Impl::fail_lost() {
  for (Sequence* sequence : lost_) {
    if (!sequence->request->closed) fail(*sequence->request, kOutOfMemory);
  }
}

void Engine::Impl::obey() {
  newcomers_.clear();
  auto command = commands_.begin();
  try {
    for (; command != commands_.end(); ++command) {
      if (auto* request = std::get_if<Request>(&*command)) {
        try {
          open(std::move(*request));
        } catch (const std::exception& error) {
          turn_away(*request, reason(error));
        }
      } else if (const auto found = open_.find(std::get<Cancel>(*command).id); found != open_.end()) {
        attempt(*found->second, [&] { cancel(*found->second); });
      }
    }
  } catch (const std::exception&) {
    // A request could be neither opened nor turned away: it and what came after it have their turn in the next step.
  }
  commands_.erase(commands_.begin(), command);
}

void Engine::Impl::open(Request&& request) {
  const RequestId id = request.id;
  kv::reserve_more(closed_, open_.size() + 1);
  const auto [slot, unique] = open_.try_emplace(id, std::make_unique<OpenRequest>());
  if (!unique) throw std::invalid_argument(fmt::format("request id {} is open already", id));
  OpenRequest& open = *slot->second;
  open.request = std::move(request);
  open.arrival = ++arrivals_;
  open.ns.salt = open.request.cache_salt;
  open.usage.prompt_tokens = static_cast<std::int32_t>(open.request.prompt.size());
  open.open_samples = static_cast<int>(open.request.samples.size());
  open.ended.resize(open.request.samples.size());
  if (auto objection = scheduler_.objection(open.request)) {
    refuse(open, objection->refusal, std::move(objection->message));
    return;
  }
  auto& sequence = *open.sequences.emplace_back(std::make_unique<Sequence>());
  sequence.request = &open;
  sequence.n_samples = open.open_samples;
  scheduler_.enqueue(sequence);
  newcomers_.push_back(id);
  if (open.request.deadline) deadlines_.emplace(*open.request.deadline, id);
}

void Engine::Impl::admit(Clock::time_point now) {
  never_.clear();
  const auto admitted = figures_.admissions;
  const auto waiting = open_.size() - static_cast<std::size_t>(scheduler_.running_requests());
  try {
    scheduler_.admit(never_, now);
  } catch (const std::exception& error) {  // the others' turn comes in the next step
    fail(*scheduler_.in_hand()->request, reason(error));
  }
  const bool from_empty = waiting <= newcomers_.size();
  for (auto i = admitted; i < figures_.admissions; ++i) rates_.left_queue(now, from_empty);
  for (const auto& [sequence, room] : never_) {
    OpenRequest& open = *sequence->request;
    if (sequence->state == SequenceState::kEnded) continue;
    attempt(open, [&, &s = *sequence, &r = room] {
      // It ran before, and together with others took more than it can ever reserve alone.
      if (open.streamed) return end_sample(s, sampling::Finish::kLength);
      refuse(open, Refusal::kTooLong,
             fmt::format("the request needs {} KV blocks and at most {} can be had", r.needed, r.available));
    });
  }
  turn_away_newcomers(now);
}

void Engine::Impl::forward() {
  ++figures_.steps;
  const auto start = Clock::now();
  const double planned = executor_.planning_seconds();
  const auto count = [&](double seconds) {  // planning is bookkeeping, whoever does it [E5]
    figures_.forward_seconds += seconds - (executor_.planning_seconds() - planned);
  };
  executor::Logits logits;
  try {
    logits = executor_.forward(batch_);
  } catch (const std::exception& error) {  // StepError, or memory ran out: either way this step is lost, no more
    count(seconds_since(start));
    fail_step(reason(error));
    return;
  }
  const double seconds = seconds_since(start);
  count(seconds);
  rates_.stepped(scheduler_.prompt_rows(), batch_.n_rows(), seconds);
  lost_.clear();
  scheduler_.computed(lost_);
  fail_lost();
  now_ = config_.now();
  expire_deadlines(now_);  // a step may take seconds
  for (std::size_t i = 0; i < sampled_.size(); ++i) {
    Sequence& first = *sampled_[i];
    const auto row = logits.row(i);
    if (first.state == SequenceState::kEnded) continue;  // memory or time ran out for it just now
    attempt(*first.request, [&] { first.n_samples > 1 ? sample_siblings(first, row) : sample(first, row); });
  }
}

// Everybody who has rows in the step in hand: the cache has slots for them, and nothing in them.
void Engine::Impl::fail_step(const char* why) {
  const auto in_step = [](const Sequence* sequence) { return sequence->rows > 0; };
  const auto& running = scheduler_.running();  // whoever fails leaves it
  for (;;) {
    const auto next = std::ranges::find_if(running, in_step);
    if (next == running.end()) return;
    fail(*(*next)->request, why);
  }
}

void Engine::Impl::sample_siblings(Sequence& first, std::span<const float> logits) {
  OpenRequest& open = *first.request;
  const std::size_t own = open.sequences.size() - 1;  // `first` is the last, and the only live one so far
  while (first.n_samples > 1) {
    auto& sibling = *open.sequences.emplace_back(std::make_unique<Sequence>());
    sibling.request = &open;
    sibling.sample = static_cast<int>(open.sequences.size() - 1 - own);
    scheduler_.part(first, sibling);
  }
  for (std::size_t i = own; i < open.sequences.size(); ++i) {
    row_.assign(logits.begin(), logits.end());  // next() may change its row in place
    sample(*open.sequences[i], row_);
  }
}

void Engine::Impl::sample(Sequence& sequence, std::span<float> logits) {
  OpenRequest& open = *sequence.request;
  auto& generation = *open.request.samples[static_cast<std::size_t>(sequence.sample)];
  outbox_.make_room();  // what comes after the token must not fail
  kv::reserve_more(sequence.out, 1);
  const auto start = Clock::now();
  sampling::Piece piece = generation.next(logits);  // may throw: a grammar, say, that no token can go on with
  figures_.sampling_seconds += seconds_since(start);

  const auto length = static_cast<std::int32_t>(sequence.out.size()) + 1;
  const bool answer_full = open.request.max_tokens > 0 && length >= open.request.max_tokens;
  const bool context_full = config_.context_length > 0 && open.usage.prompt_tokens + length >= config_.context_length;
  if (!piece.finish && (answer_full || context_full)) {
    finish_piece(piece, generation, sampling::Finish::kLength);
  }

  if (!sequence.out.empty()) {
    figures_.token_gap_seconds.add(std::chrono::duration<double>(now_ - sequence.last_token).count());
  }
  sequence.last_token = now_;
  sequence.out.push_back(piece.token);
  open.streamed = true;
  ++open.usage.completion_tokens;
  ++figures_.generated_tokens;
  const auto finish = piece.finish;
  outbox_.piece(open, sequence.sample, std::move(piece));
  if (!finish) return;
  count_end(*finish);
  scheduler_.release(sequence, Scheduler::Release::kKeep);
  settle(open);
}

void Engine::Impl::publish_snapshot() {
  figures_.cache = cache_.stats();
  figures_.running_requests = scheduler_.running_requests();
  figures_.running_sequences = scheduler_.running_samples();
  figures_.waiting_requests = static_cast<int>(open_.size()) - figures_.running_requests;
  figures_.following_requests = scheduler_.following();
  figures_.prefill_tokens_per_second = rates_.prefill_tokens_per_second();
  const std::lock_guard lock(snapshot_mutex_);
  published_ = figures_;
}

void Engine::Impl::run() {
  while (!stopped_) {
    if (!step() && !stopped_) mailbox_.wait();
  }
}

Engine::Engine(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
    : impl_(std::make_unique<Impl>(std::move(cache), executor, std::move(config), std::move(sink))) {}

Engine::~Engine() = default;

RequestId Engine::next_id() {
  return ++impl_->last_id_;
}

void Engine::submit(Request request) {
  ++impl_->submitted_;  // first: the engine may be done with it before push() returns
  try {
    request.submitted = impl_->config_.now();
    impl_->mailbox_.push(std::move(request));
  } catch (...) {
    --impl_->submitted_;
    throw;
  }
}

void Engine::cancel(RequestId id) {
  impl_->mailbox_.push(Cancel{.id = id});
}

Snapshot Engine::snapshot() const {
  const std::lock_guard lock(impl_->snapshot_mutex_);
  Snapshot snapshot = impl_->published_;
  snapshot.requests_submitted = impl_->submitted_;  // after the ends, so that none is counted without its beginning
  return snapshot;
}

void Engine::stop() {
  impl_->mailbox_.stop();
}

bool Engine::ended() const {
  return impl_->stopped_;
}

void Engine::run() {
  impl_->run();
}

bool Engine::step() {
  return impl_->step();
}

const kv::Cache& Engine::cache() const {
  return impl_->cache_;
}

}  // namespace coppice::engine
