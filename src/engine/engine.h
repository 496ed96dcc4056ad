// Engine: the loop that turns requests into steps. One thread owns the cache, the scheduler and the executor (run());
// other threads reach it by queues (submit, cancel) and read a snapshot that is published after each step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/request.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

struct EngineConfig {
  int max_batch = 32;               ///< running sequences (samples)
  int step_tokens = 512;            ///< token budget of a step: decodes first, then prefill chunks (scheduler.h)
  std::int32_t context_length = 0;  ///< tokens of one sequence, prompt and answer
  std::size_t max_waiting = 4096;   ///< requests in the queue; beyond it: Refusal::kQueueFull
};

/// The loop's figures after some step. Counters are since start; times are sums.
struct Snapshot {
  kv::CacheStats cache;
  std::int64_t prompt_tokens = 0;    ///< of admitted requests, at first admission
  std::int64_t cached_tokens = 0;    ///< of these, found in the tree
  std::int64_t computed_tokens = 0;  ///< prompt tokens run through the model, again after a preemption
  std::int64_t generated_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t requests_submitted = 0;  ///< up to this moment: those that end later than the step are in it
  std::int64_t requests_finished = 0, requests_cancelled = 0, requests_refused = 0, requests_failed = 0;
  int running_requests = 0, running_sequences = 0;
  int waiting_requests = 0;    ///< followers included
  int following_requests = 0;  ///< waiting for a leader's blocks [K7]
  std::int64_t steps = 0;
  double step_seconds = 0;      ///< whole steps
  double forward_seconds = 0;   ///< inside Executor::forward
  double sampling_seconds = 0;  ///< inside Generation::next; bookkeeping is the rest [E5]
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
  void stop();  ///< run() returns after the step in hand; all open requests end kCancelled

  // The engine's thread.
  void run();                      ///< steps until stop(); sleeps when there is nothing to do
  bool step();                     ///< one step, for tests and tools; false: nothing to do
  const kv::Cache& cache() const;  ///< for integrity checks between steps

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice::engine
