#include "server/jobs/job.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>

#include "check/assert.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

RequestError unsatisfiable(const std::string& message) {
  return {400, message.empty() ? "No token may be drawn." : message, "", "unsatisfiable"};
}

RequestError refusal_error(const engine::Event& event, const std::string& input_field) {
  const std::string& message = event.message;
  switch (*event.refusal) {
    case engine::Refusal::kTooLong:
      return {400, message.empty() ? "The prompt is too long." : message, input_field, "context_length_exceeded"};
    case engine::Refusal::kTooManySamples:
      return {400, message.empty() ? "Too many samples." : message, "n", "invalid_value"};
    case engine::Refusal::kTooHeavy:
      return {400, message.empty() ? "The request is too heavy." : message, input_field, "too_heavy"};
    case engine::Refusal::kUnsatisfiable:
      return unsatisfiable(message);
    case engine::Refusal::kQueueFull:
      return RequestError::queue_full(message.empty() ? "The queue is full: try again later." : message,
                                      std::max(1, static_cast<int>(std::ceil(event.retry_seconds))));
    case engine::Refusal::kShutdown:
      return RequestError::shutting_down();
    case engine::Refusal::kTimeout:
      return RequestError::server_error(504, message.empty() ? "The request ran out of time." : message,
                                        "deadline_exceeded");
    case engine::Refusal::kNoMemory:
      return RequestError::unavailable(message.empty() ? "The device has too little memory: try again later."
                                                       : message);
    case engine::Refusal::kFailed:
      break;
  }
  return RequestError::server_error(500, message.empty() ? "The model failed." : message, "model_failed");
}

std::size_t weight(const sampling::LogprobEntry& entry) {
  return sizeof(entry) + entry.top.size() * sizeof(sampling::TokenLogprob);
}

}  // namespace

Job::Job(EventHub& hub, Model& model, const asio::any_io_executor& executor, std::size_t max_pending_bytes,
         std::string input_field)
    : hub_(hub),
      model_(model),
      news_(executor),
      max_pending_bytes_(max_pending_bytes),
      input_field_(std::move(input_field)),
      no_memory_(RequestError::unavailable("The server is out of memory.")) {}

Job::~Job() {
  cancel_open();
}

void Job::submit(engine::Request request) {
  COPPICE_ASSERT(io_thread_.mine());
  const engine::RequestId id = request.id;
  const int n = static_cast<int>(request.samples.size());
  open_.emplace(id, Open{.first_choice = next_choice_,
                         .n_choices = n,
                         .index = reports_.size(),
                         .scored = request.scoring.has_value(),
                         .submitted = engine::Clock::now()});
  requests_.push_back(id);
  reports_.emplace_back();
  hub_.add(id, *this);
  next_choice_ += n;
  model_.submit(std::move(request));
}

asio::awaitable<bool> Job::wait(engine::Clock::duration limit) {
  COPPICE_ASSERT(io_thread_.mine());
  constexpr auto kNever = engine::Clock::time_point::max();
  const auto now = engine::Clock::now();
  const auto end = limit < kNever - now ? now + limit : kNever;
  news_.expires_at(end);
  // One thread: nothing can come between the look and the wait. A cancelled coroutine leaves by an exception
  // of co_await itself.
  while (pending_.empty() && !done()) {
    if (end != kNever && engine::Clock::now() >= end) co_return false;
    boost::system::error_code ignored;
    co_await news_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_return true;
}

std::vector<Delta> Job::take() {
  COPPICE_ASSERT(io_thread_.mine());
  pending_of_.clear();
  pending_bytes_ = 0;
  return std::exchange(pending_, {});
}

void Job::on_event(engine::Event&& event) {
  COPPICE_ASSERT(io_thread_.mine());
  const auto it = open_.find(event.request);
  if (it == open_.end()) return;
  if (event.report) reports_[it->second.index] = std::move(event.report);
  const bool out_of_time = event.refusal == engine::Refusal::kTimeout;
  if (out_of_time && first_token_ && !it->second.scored) {  // other choices have a text: this one's is empty
    for (int i = 0; i < it->second.n_choices; ++i) {
      add_piece(it->second.first_choice + i, {.finish = sampling::Finish::kTimeout});
    }
  } else if (event.refusal) {
    refusal_ = event.refusal;
    return fail(refusal_error(event, input_field_));
  } else {
    const auto finish = event.piece.finish;
    if (finish == sampling::Finish::kError)
      return fail(
          RequestError::server_error(500, event.message.empty() ? "The model failed." : event.message, "model_failed"));
    if (finish == sampling::Finish::kUnsatisfiable) return fail(unsatisfiable(event.message));
    if (finish == sampling::Finish::kCancelled) return fail(RequestError::shutting_down());
    if (event.piece.token >= 0 && !first_token_) first_token_ = engine::Clock::now();
    if (event.progress) pending(it->second.first_choice).progress.push_back(*std::move(event.progress));
    if (!event.prompt.empty()) add_prompt(it->second.first_choice, std::move(event.prompt));
    if (!event.embedding.empty()) {
      pending_bytes_ += event.embedding.size() * sizeof(float);
      pending(it->second.first_choice).embedding = std::move(event.embedding);
    }
    const int choice = it->second.first_choice + event.sample;
    const bool told = event.piece.token >= 0 && event.usage.prompt_tokens > 0;
    add_piece(choice, std::move(event.piece));
    if (told && pending_of_.contains(choice)) pending(choice).so_far = event.usage;
  }
  if (event.done) {
    pending(it->second.first_choice + event.sample).usage = event.usage;
    const double took = std::chrono::duration<double>(engine::Clock::now() - it->second.submitted).count();
    const double waited = took - event.usage.prompt_seconds - event.usage.decode_seconds;
    queue_seconds_ = std::max({queue_seconds_.value_or(0), waited, 0.0});
    usage_.prompt_tokens += event.usage.prompt_tokens;
    usage_.cached_tokens += event.usage.cached_tokens;
    usage_.completion_tokens += event.usage.completion_tokens;
    usage_.pins.insert(usage_.pins.end(), event.usage.pins.begin(), event.usage.pins.end());
    hub_.remove(event.request);
    open_.erase(it);
  }
  if (pending_bytes_ > max_pending_bytes_)
    return fail(RequestError::server_error(503, "The client reads too slowly.", kSlowReader));
  if (!pending_.empty() || done()) notify();
}

void Job::on_no_memory(engine::RequestId) noexcept {
  COPPICE_ASSERT(io_thread_.mine());
  fail(std::move(no_memory_));
}

void Job::on_shutdown() {
  COPPICE_ASSERT(io_thread_.mine());
  fail(RequestError::shutting_down());
}

Delta& Job::pending(int choice) {
  const auto [it, fresh] = pending_of_.try_emplace(choice, pending_.size());
  if (fresh) pending_.push_back({.choice = choice});
  return pending_[it->second];
}

void Job::add_prompt(int choice, std::vector<sampling::PromptToken>&& tokens) {
  auto& all = pending(choice).prompt;
  for (const auto& token : tokens) pending_bytes_ += weight(token.entry);
  all.insert(all.end(), std::make_move_iterator(tokens.begin()), std::make_move_iterator(tokens.end()));
}

void Job::add_piece(int choice, sampling::Piece&& piece) {
  if (piece.text.empty() && piece.logprobs.empty() && !piece.finish) {
    if (piece.token >= 0) silent_[choice].push_back(piece.token);
    return;
  }
  // llama-server's clients read the first entry of an event: with log-probabilities, steps don't share one.
  if (const auto it = pending_of_.find(choice);
      it != pending_of_.end() && !piece.logprobs.empty() && !pending_[it->second].logprobs.empty())
    pending_of_.erase(it);
  Delta& delta = pending(choice);
  if (const auto silent = silent_.find(choice); silent != silent_.end()) {
    delta.tokens.insert(delta.tokens.end(), silent->second.begin(), silent->second.end());
    silent_.erase(silent);
  }
  if (piece.token >= 0) delta.tokens.push_back(piece.token);
  pending_bytes_ += piece.text.size();
  for (const auto& entry : piece.logprobs) pending_bytes_ += weight(entry);
  delta.text += piece.text;
  delta.logprobs.insert(delta.logprobs.end(), std::make_move_iterator(piece.logprobs.begin()),
                        std::make_move_iterator(piece.logprobs.end()));
  if (piece.finish) {
    delta.finish = finish_ = piece.finish;
    delta.stop = std::move(piece.stop);
  }
}

void Job::fail(RequestError&& error) {
  if (!error_) error_ = std::move(error);
  cancel_open();
  notify();
}

void Job::cancel_open() noexcept {
  for (const auto& [id, open] : open_) {
    hub_.remove(id);
    model_.cancel(id);
  }
  open_.clear();
}

}  // namespace coppice::server
