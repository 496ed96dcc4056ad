// How requests end: cancelled, timed out, refused, failed, finished; and the engine's own end.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <variant>

#include "engine/engine_impl.h"

namespace coppice::engine {

namespace {

/// Who gives up in the queue has waited, too: without them, the longer the queue the better its figures.
void count_wait(Snapshot& figures, const OpenRequest& open, Clock::time_point now) {
  if (!open.admitted_before)
    figures.queue_seconds.add(std::chrono::duration<double>(now - open.request.submitted).count());
}

}  // namespace

void Engine::Impl::expire_deadlines(Clock::time_point now) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    OpenRequest& open = *open_.at(deadlines_.begin()->second);
    attempt(open, [&] { time_out(open, now); });
  }
}

void Engine::Impl::time_out(OpenRequest& open, Clock::time_point now) {
  release_all(open);
  if (open.streamed) {
    end_samples(open, sampling::Finish::kTimeout);
  } else {
    const double seconds = std::chrono::duration<double>(now - open.request.submitted).count();
    outbox_.refuse(open, Refusal::kTimeout,
                   fmt::format("the request ran out of time: after {:.1f} s it {}", std::max(seconds, 0.0),
                               open.admitted_before ? "had no token yet" : "was still in the queue"));
  }
  count_wait(figures_, open, now);
  ++figures_.requests_timed_out;
  close(open);
}

// Only who has just come is turned away: whoever was let in stays, and preempted requests may stretch the queue.
void Engine::Impl::turn_away_newcomers(Clock::time_point now) {
  auto waiting = open_.size() - static_cast<std::size_t>(scheduler_.running_requests());
  for (; waiting > config_.max_waiting && !newcomers_.empty(); newcomers_.pop_back()) {
    const auto found = open_.find(newcomers_.back());
    if (found == open_.end() || found->second->admitted_before) continue;
    --waiting;
    attempt(*found->second, [&] {
      refuse(*found->second, Refusal::kQueueFull,
             fmt::format("the queue is full: {} requests are waiting", config_.max_waiting),
             rates_.drain_seconds(config_.max_waiting, now));
    });
  }
}

void Engine::Impl::cancel(OpenRequest& open) {
  release_all(open);
  end_samples(open, sampling::Finish::kCancelled);
  count_wait(figures_, open, config_.now());
  ++figures_.requests_cancelled;
  close(open);
}

void Engine::Impl::fail(OpenRequest& open, const char* why) {
  release_all(open);
  try {
    if (open.streamed) {
      end_samples(open, sampling::Finish::kError, why);
    } else {
      outbox_.refuse(open, Refusal::kFailed, why);
    }
  } catch (const std::exception&) {
    if (!std::exchange(open.failing, true)) ++failing_;
    if (open.request.deadline) deadlines_.erase({*open.request.deadline, open.request.id});
    return;
  }
  ++figures_.requests_failed;
  close(open);
}

void Engine::Impl::end_failing() {
  for (auto it = open_.begin(); failing_ > 0 && it != open_.end();) {
    OpenRequest& open = *(it++)->second;
    if (open.failing) fail(open, kOutOfMemory);
  }
}

// A request that could not even be opened, or not wholly.
void Engine::Impl::turn_away(const Request& request, const char* why) {
  if (const auto found = open_.find(request.id); found != open_.end()) return fail(*found->second, why);
  refuse_unopened(request, Refusal::kFailed, why);
  ++figures_.requests_failed;
}

void Engine::Impl::refuse_unopened(const Request& request, Refusal refusal, const char* why) {
  OpenRequest none;
  none.request.id = request.id;
  none.usage.prompt_tokens = static_cast<std::int32_t>(request.prompt.size());
  outbox_.refuse(none, refusal, why);
}

void Engine::Impl::refuse(OpenRequest& open, Refusal refusal, std::string message, double retry_seconds) {
  release_all(open);
  outbox_.refuse(open, refusal, std::move(message), retry_seconds);
  ++figures_.requests_refused;
  close(open);
}

void Engine::Impl::end_samples(OpenRequest& open, sampling::Finish finish, const char* message) {
  for (std::size_t i = 0; i < open.ended.size(); ++i) {
    if (!open.ended[i]) outbox_.end(open, static_cast<int>(i), finish, message);
  }
}

void Engine::Impl::end_sample(Sequence& sequence, sampling::Finish finish) {
  scheduler_.release(sequence, Scheduler::Release::kKeep);
  outbox_.end(*sequence.request, sequence.sample, finish, "");
  count_end(finish);
  settle(*sequence.request);
}

void Engine::Impl::count_end(sampling::Finish finish) {
  figures_.samples_stopped += finish == sampling::Finish::kStop;
  figures_.samples_cut += finish == sampling::Finish::kLength;
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
  open.closed = true;
  failing_ -= open.failing;
  const RequestId id = open.request.id;
  if (open.request.deadline) deadlines_.erase({*open.request.deadline, id});
  const auto found = open_.find(id);
  closed_.push_back(std::move(found->second));
  open_.erase(found);
}

// False: memory ran out, and there is more to do in the next step.
bool Engine::Impl::shut_down() {
  try {
    do {
      for (; !commands_.empty(); commands_.pop_back()) {
        const auto* late = std::get_if<Request>(&commands_.back());
        if (late == nullptr) continue;
        refuse_unopened(*late, Refusal::kShutdown, "the server is shutting down");
        ++figures_.requests_refused;
      }
      mailbox_.drain(commands_);
    } while (!commands_.empty());
  } catch (const std::exception&) {
    return false;
  }
  for (auto it = open_.begin(); it != open_.end();) {
    OpenRequest& open = *(it++)->second;
    attempt(open, [&] { cancel(open); });
  }
  publish_snapshot();
  deliver();
  stopped_ = open_.empty() && outbox_.empty();
  closed_.clear();
  return stopped_;
}

}  // namespace coppice::engine
