#include "engine/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "engine/batch_builder.h"
#include "engine/mailbox.h"
#include "engine/outbox.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

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

// A step: mailbox, deadlines, admission, plan, forward, publish, sample, events. Everything below `mailbox_`,
// `last_id_`, `submitted_` and `published_` belongs to the engine's thread.
struct Engine::Impl {
  Impl(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
      : cache_(std::move(cache)),
        executor_(executor),
        config_(with_context(config, executor.info())),
        sink_(std::move(sink)),
        scheduler_(cache_, config_, figures_) {
    publish_snapshot();
  }

  bool step();
  void run();

  // The stages of a step.
  void obey(std::vector<Command>& commands);
  void open(Request&& request);
  void expire_deadlines();
  void admit();
  void forward();
  void sample_siblings(Sequence& first, std::span<const float> logits);
  void sample(Sequence& sequence, std::span<float> logits);
  void publish_snapshot();

  // Ends of requests.
  void cancel(OpenRequest& open);
  void fail(OpenRequest& open, const std::string& why);
  void refuse(OpenRequest& open, Refusal refusal, std::string message);
  void end_samples(OpenRequest& open, sampling::Finish finish, const std::string& message);
  void end_sample(Sequence& sequence, sampling::Finish finish, const std::string& message = {});
  void release_all(OpenRequest& open);
  void settle(OpenRequest& open);
  void close(OpenRequest& open);
  void shut_down();

  Mailbox mailbox_;
  std::atomic<RequestId> last_id_ = 0;
  std::atomic<std::int64_t> submitted_ = 0;
  mutable std::mutex snapshot_mutex_;
  Snapshot published_;

  kv::Cache cache_;
  executor::Executor& executor_;
  EngineConfig config_;
  EventSink sink_;
  Snapshot figures_;  // counters; the rest is filled in by publish_snapshot()
  Scheduler scheduler_;
  Outbox outbox_;
  std::unordered_map<RequestId, std::unique_ptr<OpenRequest>> open_;
  std::vector<std::unique_ptr<OpenRequest>> closed_;  // freed when the step is over
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;
  std::uint64_t arrivals_ = 0;
  bool stopped_ = false;

  // Reused by every step.
  std::vector<Command> commands_;
  std::vector<Scheduler::NeverFits> never_;
  std::vector<Sequence*> pool_full_;
  std::vector<Sequence*> sampled_;
  std::vector<float> row_;
  executor::Batch batch_;
};

bool Engine::Impl::step() {
  if (mailbox_.drain(commands_)) {
    shut_down();
    return false;
  }
  if (commands_.empty() && open_.empty()) return false;
  const auto start = Clock::now();
  obey(commands_);
  expire_deadlines();
  admit();

  batch_.copies.clear();
  pool_full_.clear();
  scheduler_.plan(batch_.copies, pool_full_);
  for (Sequence* sequence : pool_full_) {
    OpenRequest& open = *sequence->request;
    if (!open.streamed) {
      refuse(open, Refusal::kTooLong, "the KV pool is too small for this prompt and one token");
      continue;
    }
    end_sample(*sequence, sampling::Finish::kLength);
  }
  build_batch(cache_, scheduler_.running(), batch_, sampled_);
  publish_snapshot();  // a step may take seconds: who looks meanwhile must see what it holds
  if (batch_.n_rows() > 0) forward();

  figures_.step_seconds += seconds_since(start);
  publish_snapshot();
  outbox_.deliver(sink_);
  closed_.clear();
  return true;
}

void Engine::Impl::obey(std::vector<Command>& commands) {
  for (auto& command : commands) {
    if (auto* request = std::get_if<Request>(&command)) {
      open(std::move(*request));
    } else if (const auto found = open_.find(std::get<Cancel>(command).id); found != open_.end()) {
      cancel(*found->second);
    }
  }
}

void Engine::Impl::open(Request&& request) {
  const RequestId id = request.id;
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
  if (open.request.deadline) deadlines_.emplace(*open.request.deadline, id);
}

void Engine::Impl::expire_deadlines() {
  if (deadlines_.empty()) return;
  const auto now = Clock::now();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    cancel(*open_.at(deadlines_.begin()->second));
  }
}

void Engine::Impl::admit() {
  never_.clear();
  scheduler_.admit(never_);
  for (const auto& [sequence, room] : never_) {
    OpenRequest& open = *sequence->request;
    if (sequence->state == SequenceState::kEnded) continue;
    if (!open.streamed) {
      refuse(open, Refusal::kTooLong,
             fmt::format("the request needs {} KV blocks and at most {} can be had", room.needed, room.available));
      continue;
    }
    // It ran before, and together with others took more than it can ever reserve alone.
    end_sample(*sequence, sampling::Finish::kLength);
  }
  auto waiting = static_cast<std::int64_t>(open_.size()) - scheduler_.running_requests();
  for (; waiting > static_cast<std::int64_t>(config_.max_waiting); --waiting) {
    OpenRequest* youngest = scheduler_.youngest_newcomer();
    if (youngest == nullptr) return;
    refuse(*youngest, Refusal::kQueueFull,
           fmt::format("the queue is full: {} requests are waiting", config_.max_waiting));
  }
}

void Engine::Impl::forward() {
  ++figures_.steps;
  const auto start = Clock::now();
  executor::Logits logits;
  try {
    logits = executor_.forward(batch_);
  } catch (const std::exception& error) {  // StepError, or memory ran out: either way this step is lost, no more
    figures_.forward_seconds += seconds_since(start);
    std::vector<OpenRequest*> failed;
    for (const Sequence* sequence : scheduler_.running()) {
      if (sequence->rows > 0 && (failed.empty() || failed.back() != sequence->request)) {
        failed.push_back(sequence->request);
      }
    }
    for (OpenRequest* open : failed) fail(*open, error.what());
    return;
  }
  figures_.forward_seconds += seconds_since(start);
  scheduler_.computed();
  for (std::size_t i = 0; i < sampled_.size(); ++i) {
    Sequence& first = *sampled_[i];
    const auto row = logits.row(i);
    if (first.n_samples > 1) {
      sample_siblings(first, row);
    } else {
      sample(first, row);
    }
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
  const auto start = Clock::now();
  sampling::Piece piece;
  try {
    piece = generation.next(logits);
  } catch (const std::exception& error) {  // a grammar, say, that no token can go on with
    end_sample(sequence, sampling::Finish::kError, error.what());
    return;
  }
  figures_.sampling_seconds += seconds_since(start);
  sequence.out.push_back(piece.token);
  open.streamed = true;
  ++open.usage.completion_tokens;
  ++figures_.generated_tokens;

  const auto length = static_cast<std::int32_t>(sequence.out.size());
  const bool answer_full = open.request.max_tokens > 0 && length >= open.request.max_tokens;
  const bool context_full = config_.context_length > 0 && open.usage.prompt_tokens + length >= config_.context_length;
  if (!piece.finish && (answer_full || context_full)) {
    finish_piece(piece, generation, sampling::Finish::kLength);
  }
  const bool finished = piece.finish.has_value();
  outbox_.piece(open, sequence.sample, std::move(piece));
  if (!finished) return;
  scheduler_.release(sequence, Scheduler::Release::kKeep);
  settle(open);
}

void Engine::Impl::cancel(OpenRequest& open) {
  release_all(open);
  end_samples(open, sampling::Finish::kCancelled, {});
  ++figures_.requests_cancelled;
  close(open);
}

void Engine::Impl::fail(OpenRequest& open, const std::string& why) {
  release_all(open);
  if (open.streamed) {
    end_samples(open, sampling::Finish::kError, why);
  } else {
    outbox_.refuse(open, Refusal::kFailed, why);
  }
  ++figures_.requests_failed;
  close(open);
}

void Engine::Impl::refuse(OpenRequest& open, Refusal refusal, std::string message) {
  release_all(open);
  outbox_.refuse(open, refusal, std::move(message));
  ++figures_.requests_refused;
  close(open);
}

void Engine::Impl::end_samples(OpenRequest& open, sampling::Finish finish, const std::string& message) {
  for (std::size_t i = 0; i < open.ended.size(); ++i) {
    if (!open.ended[i]) outbox_.end(open, static_cast<int>(i), finish, message);
  }
}

void Engine::Impl::end_sample(Sequence& sequence, sampling::Finish finish, const std::string& message) {
  scheduler_.release(sequence, Scheduler::Release::kKeep);
  outbox_.end(*sequence.request, sequence.sample, finish, message);
  settle(*sequence.request);
}

void Engine::Impl::release_all(OpenRequest& open) {
  for (auto& sequence : open.sequences) {
    // Rows of a step that failed are void; otherwise all that is computed is worth keeping.
    scheduler_.release(*sequence, sequence->rows > 0 ? Scheduler::Release::kDrop : Scheduler::Release::kKeep);
  }
}

void Engine::Impl::settle(OpenRequest& open) {
  if (open.open_samples > 0) return;
  ++figures_.requests_finished;
  close(open);
}

void Engine::Impl::close(OpenRequest& open) {
  const RequestId id = open.request.id;
  if (open.request.deadline) deadlines_.erase({*open.request.deadline, id});
  const auto found = open_.find(id);
  closed_.push_back(std::move(found->second));
  open_.erase(found);
}

void Engine::Impl::shut_down() {
  stopped_ = true;
  for (auto& command : commands_) {
    if (auto* request = std::get_if<Request>(&command)) {
      OpenRequest late;
      late.request = std::move(*request);
      late.usage.prompt_tokens = static_cast<std::int32_t>(late.request.prompt.size());
      outbox_.refuse(late, Refusal::kShutdown, "the server is shutting down");
      ++figures_.requests_refused;
    }
  }
  while (!open_.empty()) cancel(*open_.begin()->second);
  publish_snapshot();
  outbox_.deliver(sink_);
  closed_.clear();
}

void Engine::Impl::publish_snapshot() {
  figures_.cache = cache_.stats();
  figures_.running_requests = scheduler_.running_requests();
  figures_.running_sequences = scheduler_.running_samples();
  figures_.waiting_requests = static_cast<int>(open_.size()) - figures_.running_requests;
  figures_.following_requests = scheduler_.following();
  const std::lock_guard lock(snapshot_mutex_);
  published_ = figures_;
}

void Engine::Impl::run() {
  while (!stopped_) {
    if (!step() && !stopped_) mailbox_.wait();
  }
}

Engine::Engine(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink)
    : impl_(std::make_unique<Impl>(std::move(cache), executor, config, std::move(sink))) {}

Engine::~Engine() = default;

RequestId Engine::next_id() {
  return ++impl_->last_id_;
}

void Engine::submit(Request request) {
  ++impl_->submitted_;
  impl_->mailbox_.push(std::move(request));
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
