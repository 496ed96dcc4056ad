#include "engine/refusals.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/mailbox.h"

namespace coppice::engine {

std::optional<Outcome> no_media(const Request& request, const executor::ExecutorInfo& info) {
  if (request.prompt.text().spans().empty()) return std::nullopt;
  if (info.embedding_size == 0) return refused(Refusal::kUnsatisfiable, "prompts can have no media on this device");
  if (request.prompt.has_positions() && !info.positions)
    return refused(Refusal::kUnsatisfiable, "prompts can have no media in grids on this device");
  return std::nullopt;
}

Outcome too_heavy(const OpenRequest& open, std::size_t max_weight) {
  return refused(
      Refusal::kTooHeavy,
      fmt::format("the request counts as {} tokens, with its prompt, {} for each sample and what its grammar, "
                  "log-probabilities of the prompt, its embedding or what its answer repeats take; all requests "
                  "together may have {}",
                  open.weight, kSampleWeight, max_weight));
}

Outcome no_weight_left(std::size_t max_weight) {
  return refused(Refusal::kQueueFull,
                 fmt::format("the queue is full: all requests together may have {} tokens of prompts, "
                             "and each sample counts as {}",
                             max_weight, kSampleWeight));
}

Outcome queue_full(std::size_t max_waiting) {
  return refused(Refusal::kQueueFull, fmt::format("the queue is full: {} requests are waiting", max_waiting));
}

Outcome out_of_time(const OpenRequest& open, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - open.request.submitted).count();
  return {.kind = Outcome::Kind::kTimedOut,
          .refusal = Refusal::kTimeout,
          .message = fmt::format("the request ran out of time: after {:.1f} s it {}", std::max(seconds, 0.0),
                                 open.admitted_before ? "had no token yet" : "was still in the queue")};
}

Outcome no_blocks(std::int64_t needed, std::int64_t available) {
  return refused(Refusal::kTooLong,
                 fmt::format("the request needs {} KV blocks and at most {} can be had", needed, available));
}

}  // namespace coppice::engine
