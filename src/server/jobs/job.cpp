#include "server/jobs/job.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cmath>
#include <iterator>
#include <utility>
#include <variant>

#include "check/assert.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

RequestError unsatisfiable(const std::string& message) {
  return {400, message.empty() ? "No token may be drawn." : message, "", "unsatisfiable"};
}

RequestError refusal_error(const engine::Refused& refused, const std::string& input_field) {
  const std::string& message = refused.message;
  switch (refused.why) {
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
                                      std::max(1, static_cast<int>(std::ceil(refused.retry_seconds))));
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
  unfinished_.emplace(id, Submitted{.first_choice = next_choice_,
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
  const auto it = unfinished_.find(event.request);
  if (it == unfinished_.end()) return;
  const Submitted& request = it->second;
  const auto* const sampled = std::get_if<engine::Sampled>(&event.news);
  const int choice = request.first_choice + (sampled != nullptr ? sampled->sample : 0);
  if (event.report) reports_[request.index] = std::move(event.report);
  if (auto error = std::visit([&](auto&& news) { return add(request, std::move(news)); }, std::move(event.news)))
    return fail(*std::move(error));
  if (event.ended) {
    add_usage(request, *event.ended);
    pending(choice).usage = *std::move(event.ended);
    hub_.remove(event.request);
    unfinished_.erase(it);
  }
  if (pending_bytes_ > max_pending_bytes_)
    return fail(RequestError::server_error(503, "The client reads too slowly.", kSlowReader));
  if (!pending_.empty() || done()) notify();
}

std::optional<RequestError> Job::add(const Submitted& request, engine::Sampled&& news) {
  const auto finish = news.piece.finish;
  if (finish == sampling::Finish::kError)
    return RequestError::server_error(500, news.message.empty() ? "The model failed." : news.message, "model_failed");
  if (finish == sampling::Finish::kUnsatisfiable) return unsatisfiable(news.message);
  if (finish == sampling::Finish::kCancelled) return RequestError::shutting_down();
  if (news.piece.token >= 0 && !first_token_) first_token_ = engine::Clock::now();
  const int choice = request.first_choice + news.sample;
  add_piece(choice, std::move(news.piece));
  if (news.so_far && pending_of_.contains(choice)) pending(choice).so_far = std::move(news.so_far);
  return std::nullopt;
}

std::optional<RequestError> Job::add(const Submitted& request, engine::ScoredTokens&& news) {
  auto& all = pending(request.first_choice).prompt;
  for (const auto& token : news.tokens) pending_bytes_ += weight(token.entry);
  all.insert(all.end(), std::make_move_iterator(news.tokens.begin()), std::make_move_iterator(news.tokens.end()));
  return std::nullopt;
}

std::optional<RequestError> Job::add(const Submitted& request, engine::Embedding&& news) {
  pending_bytes_ += news.values.size() * sizeof(float);
  pending(request.first_choice).embedding = std::move(news.values);
  return std::nullopt;
}

std::optional<RequestError> Job::add(const Submitted& request, engine::Progress&& news) {
  pending(request.first_choice).progress.push_back(std::move(news));
  return std::nullopt;
}

std::optional<RequestError> Job::add(const Submitted& request, engine::Refused&& news) {
  // Other choices have a text: this one's is empty.
  if (news.why == engine::Refusal::kTimeout && first_token_ && !request.scored) {
    for (int i = 0; i < request.n_choices; ++i)
      add_piece(request.first_choice + i, {.finish = sampling::Finish::kTimeout});
    return std::nullopt;
  }
  refusal_ = news.why;
  return refusal_error(news, input_field_);
}

/// Of a request that has just ended.
void Job::add_usage(const Submitted& request, const engine::Usage& usage) {
  const double took = std::chrono::duration<double>(engine::Clock::now() - request.submitted).count();
  const double waited = took - usage.prompt_seconds - usage.decode_seconds;
  queue_seconds_ = std::max({queue_seconds_.value_or(0), waited, 0.0});
  usage_.prompt_tokens += usage.prompt_tokens;
  usage_.cached_tokens += usage.cached_tokens;
  usage_.completion_tokens += usage.completion_tokens;
  usage_.pins.insert(usage_.pins.end(), usage.pins.begin(), usage.pins.end());
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
    finish_ = piece.finish;
    delta.end = ChoiceEnd{.finish = *piece.finish, .stop = std::move(piece.stop)};
  }
}

void Job::fail(RequestError&& error) {
  if (!error_) error_ = std::move(error);
  cancel_open();
  notify();
}

void Job::cancel_open() noexcept {
  for (const auto& [id, request] : unfinished_) {
    hub_.remove(id);
    model_.cancel(id);
  }
  unfinished_.clear();
}

}  // namespace coppice::server
