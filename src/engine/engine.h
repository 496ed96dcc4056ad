// Engine: the loop that turns requests into steps. One thread owns the cache, the scheduler and the executor (run());
// other threads reach it by queues (submit, cancel) and read a snapshot that is published before and after each step's
// computation.
//
// Memory: what clients can make the engine hold is counted when it comes in: EngineConfig::max_waiting and max_weight.
// An exception, std::bad_alloc among them, is caught in two places: around the work for one request, which then fails;
// and around the part of a step that its requests share, which then all fail. An order about prefixes gets no answer
// then. What isn't needed is left out if memory fails for it: what the page shows (spare()), a pin (PrefixTable), a
// place ahead in the queue (Queue). Beyond these, and if memory fails for their endings too, it leaves step() and
// run(), and the engine can only be destroyed.
#pragma once

#include <memory>

#include "engine/config.h"
#include "engine/reply.h"
#include "engine/request.h"
#include "engine/snapshot.h"
#include "engine/tier_config.h"
#include "engine/view.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

class Engine {
 public:
  /// `sink` gets each step's events, on the engine's thread; it must not throw. The executor outlives the engine.
  Engine(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread.
  RequestId next_id();
  void submit(Request request);        ///< throws std::bad_alloc: the request is gone
  void cancel(RequestId id) noexcept;  ///< unknown or finished ids are ignored
  /// Answered on the engine's thread, between two steps; there is no answer where too many wait (false), after stop(),
  /// or if memory is short.
  bool ask(Question question, Reply<View> reply);
  bool ask(PrefixCommand order, Reply<PrefixAnswer> reply = {});  ///< answered in the same way
  Snapshot snapshot() const;
  void wake() noexcept;  ///< samples may be ready that were not (sampling::Generation::ready())
  /// From now on a store keeps what the pool gives up. Ignored where the executor moves no blocks, works ahead, or
  /// nothing is shared.
  void attach(TierConfig tiers);
  /// All that is cached is to be stored, beside what runs: Snapshot::settled says when there is nothing left. What is
  /// left, and what comes, goes until then when stop() was called, and the store is done with it.
  void settle(Clock::time_point until = {});
  void stop();         ///< run() returns after the step in hand; all open requests end kCancelled
  bool ended() const;  ///< no step is under way, and none will come

  // The engine's thread.
  void run();                      ///< steps until stop(); sleeps when there is nothing to do
  bool step();                     ///< one step, for tests and tools; false: nothing to do
  const kv::Cache& cache() const;  ///< for integrity checks between steps

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::engine
