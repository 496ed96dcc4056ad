// A new field of an Event (request.h) is set here. Job::on_event() and the add() of its kind (server/jobs/job.cpp) put
// it into a Delta (server/jobs/answer.h), which each API's Answer writes: the *_answer.cpp below server/api. A row in
// docs/api.md.
//
// What Usage counts: tokens of answers and seconds here, of prompts in sequence.h, found and loaded ones in
// prompt_starts.cpp. Job::add_usage() sums tokens and pins over prompts. Its words: each Answer's, and
// server/api/base/telemetry.cpp for llama-server's timings.
#include "engine/request_table.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <memory>
#include <new>
#include <utility>

#include "check/assert.h"
#include "executor/executor.h"

namespace coppice::engine {

namespace {

/// Adds the text held back to the sample's last piece.
void flush_into(sampling::Piece& last, sampling::Generation& generation) {
  sampling::Piece held = generation.flush();
  last.text += held.text;
  last.logprobs.insert(last.logprobs.end(), std::make_move_iterator(held.logprobs.begin()),
                       std::make_move_iterator(held.logprobs.end()));
}

}  // namespace

Outcome failed(const std::exception& error) {
  const bool memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  const bool asked = dynamic_cast<const sampling::Unsatisfiable*>(&error) != nullptr;
  const bool no_room = dynamic_cast<const executor::OutOfMemory*>(&error) != nullptr;
  return {.kind = Outcome::Kind::kFailed,
          .refusal = asked     ? Refusal::kUnsatisfiable
                     : no_room ? Refusal::kNoMemory
                               : Refusal::kFailed,
          .message = memory ? "out of memory" : error.what()};
}

Outcome refused(Refusal why, std::string message) {
  return {.kind = Outcome::Kind::kRefused, .refusal = why, .message = std::move(message)};
}

OpenRequest& RequestTable::open(OpenRequests::node_type request) {
  const auto slot = open_.insert(std::move(request));
  COPPICE_ASSERT(slot.inserted);
  OpenRequest& open = slot.position->second;
  open.arrival = ++arrivals_;
  return open;
}

std::map<std::string_view, int> RequestTable::never_admitted() const {
  std::map<std::string_view, int> counts;
  for (const auto& [id, open] : open_)
    if (open.share != nullptr && !open.admitted_before) ++counts[open.key()];
  return counts;
}

void RequestTable::watch_deadline(const OpenRequest& open) {
  if (open.request.deadline) deadlines_.emplace(*open.request.deadline, open.request.id);
}

OpenRequest* RequestTable::find(RequestId id) {
  const auto found = open_.find(id);
  return found == open_.end() ? nullptr : &found->second;
}

OpenRequest* RequestTable::overdue(Clock::time_point now) {
  if (deadlines_.empty() || deadlines_.begin()->first > now) return nullptr;
  return &open_.at(deadlines_.begin()->second);
}

double RequestTable::seconds_since_admission(const OpenRequest& open) const {
  return std::chrono::duration<double>(config_.now() - open.admitted_at).count();
}

void RequestTable::add(Sequence& sequence, sampling::Piece&& piece, std::optional<sampling::Finish> cut) {
  COPPICE_ASSERT(sequence.n_samples == 1);
  OpenRequest& open = *sequence.request;
  if (cut && !piece.finish) {
    flush_into(piece, *open.request.samples[static_cast<std::size_t>(sequence.sample)]);
    piece.finish = cut;
  }
  const auto finish = piece.finish;
  put(open, {.sample = sequence.sample, .piece = std::move(piece)});
  if (!finish) return;
  figures_.samples_stopped += *finish == sampling::Finish::kStop;
  figures_.samples_cut += *finish == sampling::Finish::kLength;
  scheduler_.release(sequence);
  if (open.all_ended()) end(open, {.kind = Outcome::Kind::kFinished});
}

void RequestTable::add_prompt(OpenRequest& open, std::vector<sampling::PromptToken> tokens) {
  put(open).news = ScoredTokens(std::move(tokens));
}

void RequestTable::add_progress(OpenRequest& open, std::int32_t computed) {
  computed = std::min(computed, open.usage.prompt_tokens);
  if (!open.request.progress || open.streamed() || computed <= open.told) return;
  open.told = computed;
  Progress progress{.computed = computed, .usage = open.usage};
  if (computed > open.usage.cached_tokens) progress.usage.prompt_seconds = seconds_since_admission(open);
  put(open).news = std::move(progress);
}

void RequestTable::add_embedding(OpenRequest& open, std::vector<float> embedding) {
  put(open).news = Embedding(std::move(embedding));
}

void RequestTable::end(OpenRequest& open, const Outcome& outcome) {
  // A request that never got in leaves its place to the next: the queue's patience counts those who stayed.
  if (open.arrival == arrivals_ && !open.admitted_before) --arrivals_;
  for (auto& sequence : open.sequences) scheduler_.release(*sequence);
  scheduler_.leave(open);
  if (outcome.kind == Outcome::Kind::kCancelled) {
    end_samples(open, sampling::Finish::kCancelled, "");
  } else if (outcome.kind != Outcome::Kind::kFinished) {
    if (!open.streamed()) {
      put_refusal(open, outcome);
    } else if (outcome.kind == Outcome::Kind::kTimedOut) {
      end_samples(open, sampling::Finish::kTimeout, "");
    } else {
      const bool asked = outcome.refusal == Refusal::kUnsatisfiable;
      end_samples(open, asked ? sampling::Finish::kUnsatisfiable : sampling::Finish::kError, outcome.message);
    }
  }
  count(open, outcome);
  if (open.request.deadline) deadlines_.erase({*open.request.deadline, open.request.id});
  ended_.insert(open_.extract(open.request.id));
}

/// A fresh event of the request. Its caller's news must be ready to be moved in, for nothing may throw after it.
Event& RequestTable::put(OpenRequest& open) {
  // Mostly each sample that runs has one in a step. The sink takes the vector away, so it would grow anew each time.
  if (events_.empty()) events_.reserve(static_cast<std::size_t>(scheduler_.running_samples()));
  Event& event = events_.emplace_back();
  event.request = open.request.id;
  event.report = std::exchange(open.report, nullptr);
  return event;
}

void RequestTable::put(OpenRequest& open, Sampled&& sampled) {
  const bool is_token = sampled.piece.token >= 0, is_last = sampled.piece.finish.has_value();
  const bool tells = open.request.progress && is_token;
  const auto sample = static_cast<std::size_t>(sampled.sample);
  Event& event = put(open);
  if (is_token) {  // counted when it is sure to go out
    if (!open.streamed()) open.usage.prompt_seconds = seconds_since_admission(open);
    ++open.usage.completion_tokens;
    ++figures_.generated_tokens;
  }
  if (open.streamed() && (tells || is_last))
    open.usage.decode_seconds = seconds_since_admission(open) - open.usage.prompt_seconds;
  if (tells) sampled.so_far = open.usage;
  event.news = std::move(sampled);
  if (!is_last) return;
  open.ended[sample] = true;
  if (open.all_ended()) event.ended = std::move(open.usage);  // but for its numbers, which stay
}

void RequestTable::put_refusal(OpenRequest& open, const Outcome& outcome) {
  Refused refused{.why = outcome.refusal, .message = outcome.message, .retry_seconds = outcome.retry_seconds};
  Usage usage = open.usage;
  Event& event = put(open);
  event.news = std::move(refused);
  event.ended = std::move(usage);
}

void RequestTable::end_samples(OpenRequest& open, sampling::Finish finish, const std::string& message) {
  for (std::size_t i = 0; i < open.ended.size(); ++i) {
    if (open.ended[i]) continue;
    sampling::Piece last{.finish = finish};
    // An answer that failed is none: its sample, which may be what failed, isn't asked for the rest of the text.
    const bool failed = finish == sampling::Finish::kError || finish == sampling::Finish::kUnsatisfiable;
    if (!failed) flush_into(last, *open.request.samples[i]);
    put(open, {.sample = static_cast<int>(i), .piece = std::move(last), .message = message});
  }
}

void RequestTable::count(const OpenRequest& open, const Outcome& outcome) {
  using Kind = Outcome::Kind;
  const Kind kind = outcome.kind;
  figures_.requests_finished += kind == Kind::kFinished;
  figures_.requests_cancelled += kind == Kind::kCancelled;
  figures_.requests_timed_out += kind == Kind::kTimedOut;
  // What no token can satisfy is the client's fault.
  const bool asked_too_much = kind == Kind::kFailed && outcome.refusal == Refusal::kUnsatisfiable;
  figures_.requests_failed += kind == Kind::kFailed && !asked_too_much;
  figures_.requests_refused += kind == Kind::kRefused || asked_too_much;
  // Who gives up in the queue has waited, too: without them, the longer the queue the better its figures.
  const bool gave_up = kind == Kind::kCancelled || kind == Kind::kTimedOut;
  if (gave_up && !open.admitted_before)
    figures_.queue_seconds.add(std::chrono::duration<double>(outcome.at - open.request.submitted).count());
}

OpenRequests RequestTable::deliver(const EventSink& sink) {
  if (!events_.empty()) sink(std::exchange(events_, {}));
  return std::exchange(ended_, {});
}

}  // namespace coppice::engine
