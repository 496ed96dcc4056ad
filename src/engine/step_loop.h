// StepLoop: what happens in a step, from the commands in the mailbox to the events that go out. Owns the cache, the
// requests and the figures. Belongs to the engine's thread, but for stopped(), snapshot() and config(). What it owns is
// reached through it alone, so its thread is checked here and nowhere below; when it has stopped another one may look.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "check/assert.h"
#include "check/mutex.h"
#include "check/thread_role.h"
#include "engine/config.h"
#include "engine/integrity_watch.h"
#include "engine/mailbox.h"
#include "engine/prefix_table.h"
#include "engine/prompt_starts.h"
#include "engine/rates.h"
#include "engine/refusals.h"
#include "engine/request_table.h"
#include "engine/row_reader.h"
#include "engine/scheduler.h"
#include "engine/sleeper.h"
#include "engine/snapshot.h"
#include "engine/step_runner.h"
#include "engine/store_traffic.h"
#include "engine/tiers.h"
#include "engine/viewer.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

class StepLoop {
 public:
  StepLoop(Mailbox& mailbox, kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink);
  ~StepLoop() { let_land(); }
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  /// False: nothing to do, or it has stopped.
  bool step();
  bool stopped() const { return stopped_; }
  Snapshot snapshot() const {
    const check::Lock lock(published_mutex_);
    Snapshot snapshot = published_;
    if (store_ != nullptr) snapshot.places = store_->places();  // it changes while the engine rests
    return snapshot;
  }
  const EngineConfig& config() const { return config_; }
  const kv::Cache& cache() const {
    COPPICE_ASSERT(engine_thread_.mine());
    return cache_;
  }
  /// There is something to do then: a pinned prefix's time is over, or a store has taken too long. None: it may take
  /// for ever.
  std::optional<Clock::time_point> waits_until() const;

 private:
  // The stages of a step.
  void obey();
  void obey(PrefixCommand& order, Reply<PrefixAnswer>& reply);
  void attach(TierConfig&& tiers);
  void take_loaded();
  void expire();
  void resume();
  void admit();
  void compute();
  void publish_snapshot();
  void answer();
  void deliver();

  void open(OpenRequest& open);
  void admit_next(Sequence& sequence);
  void turn_away();
  void begin_step();
  Sequence* plan();
  void prepare_samples();
  void collect();
  void read(const executor::Result& result);
  void tell_samples();
  void fail_plan(const std::exception& error);
  void fail_step(PlannedStep& step, const std::exception& error);
  void let_land();
  void end_for_room(Sequence& sequence, Outcome too_long);
  void shut_down();

  /// Does something for one request. What that throws fails the request and nothing else.
  template <class F>
  void attempt(OpenRequest& open, F&& f) try {
    f();
  } catch (const std::exception& error) {
    end(open, failed(error));
  }
  void end(OpenRequest& open, Outcome outcome);
  Outcome with_retry(Outcome queue_full) const;
  std::size_t waiting() const { return requests_.size() - static_cast<std::size_t>(scheduler_.running_requests()); }

  check::ThreadRole engine_thread_;
  Mailbox& mailbox_;
  kv::Cache cache_;
  EngineConfig config_;
  EventSink sink_;
  Snapshot figures_;  // counters; the rest is filled in by publish_snapshot()
  Rates rates_;
  Tiers tiers_;
  Scheduler scheduler_;
  StepRunner runner_;
  Sleeper sleeper_;
  RequestTable requests_;
  PrefixTable prefixes_;
  RowReader reader_;
  IntegrityWatch watch_;
  Viewer viewer_;
  PromptStarts starts_;
  StoreTraffic traffic_;
  Clock::time_point next_answer_{};  // no question is answered before
  std::atomic<bool> stopped_ = false;
  mutable check::Mutex published_mutex_;
  Snapshot published_ COPPICE_GUARDED_BY(published_mutex_);  // figures_ after some step
  std::shared_ptr<tier::Store> store_ COPPICE_GUARDED_BY(published_mutex_);

  // The step in hand.
  Clock::time_point now_{};
  Commands commands_;
  std::vector<RequestId> newcomers_;  // queued in this step, in the order of arrival
  bool queue_was_empty_ = false;
  std::vector<sampling::SamplerSpec> specs_;
  /// To orders of this step: whoever reads figures behind an answer is to find them as it says.
  std::vector<std::pair<Reply<PrefixAnswer>, std::shared_ptr<const PrefixAnswer>>> answers_;
};

}  // namespace coppice::engine
