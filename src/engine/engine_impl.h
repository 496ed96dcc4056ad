// The inside of Engine, shared by engine.cpp (a step) and endings.cpp (how requests end).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/integrity_watch.h"
#include "engine/mailbox.h"
#include "engine/outbox.h"
#include "engine/rates.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace coppice::engine {

// A step: mailbox, deadlines, admission, plan, forward, publish, sample, events. Everything below `mailbox_`,
// `last_id_`, `submitted_` and `published_` belongs to the engine's thread.
struct Engine::Impl {
  Impl(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink);

  bool step();
  void run();

  // The stages of a step.
  void obey();
  void open(Request&& request);
  void turn_away(const Request& request, const char* why);
  void refuse_unopened(const Request& request, Refusal refusal, const char* why);
  /// Does something for a request. If that throws, the request fails; the engine lives.
  template <class F>
  void attempt(OpenRequest& open, F&& f);
  void expire_deadlines(Clock::time_point now);
  void admit(Clock::time_point now);
  void forward();
  void fail_step(const char* why);
  void fail_lost();
  void deliver();
  void sample_siblings(Sequence& first, std::span<const float> logits);
  void sample(Sequence& sequence, std::span<float> logits);
  void publish_snapshot();

  // Ends of requests.
  void time_out(OpenRequest& open, Clock::time_point now);
  void turn_away_newcomers(Clock::time_point now);
  void cancel(OpenRequest& open);
  /// Never throws: where there is no memory for the ending itself, it comes with a later step.
  void fail(OpenRequest& open, const char* why);
  void end_failing();
  void refuse(OpenRequest& open, Refusal refusal, std::string message, double retry_seconds = 0);
  void end_samples(OpenRequest& open, sampling::Finish finish, const char* message = "");
  void end_sample(Sequence& sequence, sampling::Finish finish);
  void count_end(sampling::Finish finish);
  void release_all(OpenRequest& open);
  void settle(OpenRequest& open);
  void close(OpenRequest& open);
  bool shut_down();

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
  Rates rates_;
  Scheduler scheduler_;
  IntegrityWatch watch_;
  Outbox outbox_;
  std::unordered_map<RequestId, std::unique_ptr<OpenRequest>> open_;
  std::vector<std::unique_ptr<OpenRequest>> closed_;  // freed when the step is over
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;
  std::uint64_t arrivals_ = 0;
  int failing_ = 0;                    // of open_: OpenRequest::failing
  std::atomic<bool> stopped_ = false;  ///< Engine::ended()
  Clock::time_point now_{};            // when the step's logits came

  // Reused by every step.
  std::vector<Command> commands_;
  std::vector<RequestId> newcomers_;  // queued in this step, in the order of arrival
  std::vector<Scheduler::NeverFits> never_;
  std::vector<Sequence*> pool_full_;
  std::vector<Sequence*> lost_;  // memory ran out for them
  std::vector<Sequence*> sampled_;
  std::vector<float> row_;
  executor::Batch batch_;
};

inline constexpr const char* kOutOfMemory = "out of memory";

/// What clients are told. Lives as long as `error`.
inline const char* reason(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? kOutOfMemory : error.what();
}

template <class F>
void Engine::Impl::attempt(OpenRequest& open, F&& f) {
  try {
    f();
  } catch (const std::exception& error) {
    if (!open.closed) fail(open, reason(error));
  }
}

}  // namespace coppice::engine
