// EngineConfig: what an engine is told once, when it is made. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "engine/request.h"

namespace coppice::engine {

struct EngineConfig {
  int max_batch = 32;     ///< running sequences (samples)
  int step_tokens = 512;  ///< token budget of a step: decodes first, then prefill chunks (scheduler.h)
  int alone_tokens = 0;   ///< of a step in which nothing decodes, at most; below step_tokens: these (step_budget.h)
  double alone_seconds = 0.25;  ///< ... which takes about so long, at most, if it has more than step_tokens
  int scored_rows = 0;  ///< rows of a step whose logits score prompts' tokens; 0: as many as 64 MiB of logits hold
  std::int32_t context_length = 0;                ///< tokens of one sequence, prompt and answer
  std::size_t max_waiting = 4096;                 ///< requests in the queue; beyond it: Refusal::kQueueFull
  std::size_t max_weight = std::size_t{1} << 26;  ///< of all open requests together, in tokens (mailbox.h); beyond it:
                                                  ///< kQueueFull, and kTooHeavy for a request that alone is beyond it
  double pin_share = 0.5;                         ///< of the pool: the most that pinned prefixes hold
  double pin_share_of_key = 0.25;                 ///< ... of one payer (prefix_table.h)
  Clock::duration sleep_after{};  ///< without work, until the weights' memory is let go (sleeper.h); 0: never
  bool growth_room = true;        ///< admission leaves the running samples room to grow (scheduler.h)
  int patience = 32;              ///< how far the queue departs from the order of arrival (queue.h); 0: not at all
  std::function<Clock::time_point()> now = Clock::now;  ///< deadlines and waits, on any thread; tests bring their own
  int check_every = 0;  ///< steps between checks of the cache (integrity_watch.h); 0: none
  std::function<void(const std::string&)> on_finding;  ///< gets what such a check found; on the engine's thread
};

}  // namespace coppice::engine
