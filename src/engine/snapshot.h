// Snapshot: the loop's figures after some step. Plain data. Counters are since start; times are sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/histogram.h"
#include "engine/tier_config.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

struct Snapshot {
  kv::CacheStats cache;
  std::int64_t prompt_tokens = 0;    ///< of admitted requests, at first admission
  std::int64_t cached_tokens = 0;    ///< of these, found in the tree
  std::int64_t loaded_tokens = 0;    ///< that came from a store in place of being computed, again after a preemption
  double saved_seconds = 0;          ///< what these would have taken to compute, each at the speed of its time
  std::int64_t computed_tokens = 0;  ///< prompt tokens run through the model, again after a preemption
  std::int64_t generated_tokens = 0;
  std::int64_t admissions = 0;          ///< requests that began to run
  std::int64_t passes = 0;              ///< admissions and resumptions ahead of an earlier request (queue.h)
  std::int64_t preemptions = 0;         ///< requests
  std::int64_t resumptions = 0;         ///< sequences that were preempted and run again
  std::int64_t requests_submitted = 0;  ///< up to this moment: those that end later than the step are in it
  std::int64_t requests_finished = 0, requests_cancelled = 0, requests_refused = 0, requests_failed = 0;
  std::int64_t requests_timed_out = 0;                ///< their deadline passed, before or after their first token
  std::int64_t samples_stopped = 0, samples_cut = 0;  ///< that ended with kStop, and with kLength
  int running_requests = 0, running_sequences = 0;
  int waiting_requests = 0;    ///< followers included
  int keys = 0;                ///< that have open requests
  int following_requests = 0;  ///< waiting for a leader's blocks
  int loading_requests = 0;    ///< running, and waiting for a store
  std::int64_t steps = 0;
  double step_seconds = 0;         ///< whole steps
  double forward_seconds = 0;      ///< inside Executor::submit and wait, its planning excluded
  double sampling_seconds = 0;     ///< inside Generation, and telling a device how to draw; bookkeeping is the rest
  executor::DeviceFigures device;  ///< since the executor was made
  executor::ThreadFigures threads;
  bool asleep = false;        ///< the weights' memory is let go until the next step (sleeper.h)
  std::int64_t wakes = 0;     ///< how often it was brought back
  double waking_seconds = 0;  ///< that this took
  std::int64_t integrity_checks = 0, integrity_findings = 0;  ///< EngineConfig::check_every
  double prefill_tokens_per_second = 0;                       ///< recent; 0: not known yet

  TierFigures tiers;
  std::vector<tier::Counters> places;  ///< of what outside of the pool blocks are in, if there is such
  bool settled = true;                 ///< nothing waits to be stored

  std::int64_t pin_changes = 0, pins_given_up = 0;  ///< PrefixTable's

  Histogram queue_seconds{kRequestBounds};    ///< from arrival to first admission, or to the end of who never ran
  Histogram token_gap_seconds{kTokenBounds};  ///< between a sample's tokens, pauses by preemption included
  Histogram step_duration_seconds{kTokenBounds};
};

}  // namespace coppice::engine
