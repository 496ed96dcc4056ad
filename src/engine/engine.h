// Engine: the loop that turns requests into steps. One thread owns the cache, the scheduler and the executor (run());
// other threads reach it by queues (submit, cancel) and read a snapshot that is published after each step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/request.h"
#include "engine/snapshot.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

struct EngineConfig {
  int max_batch = 32;               ///< running sequences (samples)
  int step_tokens = 512;            ///< token budget of a step: decodes first, then prefill chunks (scheduler.h)
  std::int32_t context_length = 0;  ///< tokens of one sequence, prompt and answer
  std::size_t max_waiting = 4096;   ///< requests in the queue; beyond it: Refusal::kQueueFull
  bool growth_room = true;          ///< admission leaves the running samples room to grow (scheduler.h)
  int max_passes = 32;              ///< that whoever waits the longest lets pass (scheduler.h); 0: by arrival alone
  std::function<Clock::time_point()> now = Clock::now;  ///< deadlines and waits, on any thread; tests bring their own
  int check_every = 0;  ///< steps between checks of the cache (integrity_watch.h); 0: none
  std::function<void(const std::string&)> on_finding;  ///< gets what such a check found; on the engine's thread
};

class Engine {
 public:
  /// `sink` gets each step's events, on the engine's thread. The executor outlives the engine.
  Engine(kv::Cache cache, executor::Executor& executor, EngineConfig config, EventSink sink);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Any thread.
  RequestId next_id();
  void submit(Request request);
  void cancel(RequestId id);  ///< unknown or finished ids are ignored
  Snapshot snapshot() const;
  void stop();         ///< run() returns after the step in hand; all open requests end kCancelled
  bool ended() const;  ///< no step is under way, and none will come

  // The engine's thread.
  void run();                      ///< steps until stop(); sleeps when there is nothing to do
  bool step();                     ///< one step, for tests and tools; false: nothing to do
  const kv::Cache& cache() const;  ///< for integrity checks between steps

 private:
  struct Impl;  // engine_impl.h
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::engine
