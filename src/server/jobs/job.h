// Job: all engine requests behind one client's request (one per prompt, n samples each), and their news since the last
// look.
//
// Belongs to the io thread. Its destructor cancels what is unfinished: when a client goes away, the coroutine that owns
// the job is destroyed.
//
// Invariants
//   1. Untaken pieces of one choice are merged into one delta, in order: a slow reader costs memory by its text, not by
//      its tokens, and delays nobody.
//   2. Untaken deltas weigh at most `max_pending_bytes`; beyond it the job is cancelled and error() says so.
//   3. done() iff every request had its last event, or error() is set.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "check/thread_role.h"
#include "engine/request.h"
#include "server/base/request_error.h"
#include "server/jobs/answer.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/model.h"

namespace coppice::server {

/// The code of a job's error() when its client left too much untaken.
inline constexpr const char* kSlowReader = "slow_reader";

class Job final : public EventListener {
 public:
  /// `input_field`: the field that is to blame when the prompt doesn't fit.
  Job(EventHub& hub, Model& model, const boost::asio::any_io_executor& executor, std::size_t max_pending_bytes,
      std::string input_field);
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Hands a request to the engine; its samples become the next choices.
  void submit(engine::Request request);

  /// Returns true when there are deltas to take, or done(); false after `limit` without.
  boost::asio::awaitable<bool> wait(engine::Clock::duration limit = engine::Clock::duration::max());
  std::vector<Delta> take();

  bool done() const { return error_.has_value() || unfinished_.empty(); }
  const std::optional<RequestError>& error() const { return error_; }
  /// Why the engine refused one of the requests, if that is what ended the job.
  const std::optional<engine::Refusal>& refusal() const { return refusal_; }
  const std::vector<engine::RequestId>& requests() const { return requests_; }  ///< in the order of submit()
  /// When the first token's news came, of whichever choice. Its text may be held back for long, or never be shown.
  const std::optional<engine::Clock::time_point>& first_token() const { return first_token_; }
  /// How the choice ended that ended last; none: none has.
  const std::optional<sampling::Finish>& finish() const { return finish_; }
  /// Seconds in the engine's queue: of the request that waited longest, of those that are done. None: none is.
  const std::optional<double>& queue_seconds() const { return queue_seconds_; }
  /// Tokens and pins of all prompts; its seconds and loaded_tokens stay 0. Complete when done().
  const engine::Usage& usage() const { return usage_; }
  int n_choices() const { return next_choice_; }
  /// One for each request, in the order of submit(), null where none was asked for or time ran out in the queue;
  /// complete when done() without error().
  const std::vector<std::shared_ptr<const engine::CacheReport>>& reports() const { return reports_; }

  void on_event(engine::Event&& event) override;
  void on_no_memory(engine::RequestId id) noexcept override;
  void on_shutdown() override;

 private:
  Delta& pending(int choice);
  struct Submitted {
    int first_choice = 0, n_choices = 0;
    std::size_t index = 0;  ///< of its report
    bool scored = false;    ///< its prompt is
    engine::Clock::time_point submitted;
  };
  /// Takes a request's news. An error ends the job.
  std::optional<RequestError> add(const Submitted& request, engine::Sampled&& news);
  std::optional<RequestError> add(const Submitted& request, engine::ScoredTokens&& news);
  std::optional<RequestError> add(const Submitted& request, engine::Embedding&& news);
  std::optional<RequestError> add(const Submitted& request, engine::Progress&& news);
  std::optional<RequestError> add(const Submitted& request, engine::Refused&& news);
  void add_piece(int choice, sampling::Piece&& piece);
  void add_usage(const Submitted& request, const engine::Usage& usage);
  void fail(RequestError&& error);
  void cancel_open() noexcept;
  void notify() { news_.cancel(); }

  check::ThreadRole io_thread_;
  EventHub& hub_;
  Model& model_;
  boost::asio::steady_timer news_;  ///< cancelled to wake wait()
  std::size_t max_pending_bytes_;
  std::string input_field_;
  std::unordered_map<engine::RequestId, Submitted> unfinished_;
  std::vector<engine::RequestId> requests_;
  std::vector<std::shared_ptr<const engine::CacheReport>> reports_;
  int next_choice_ = 0;
  std::vector<Delta> pending_;
  std::unordered_map<int, std::size_t> pending_of_;         ///< choice -> index in pending_
  std::unordered_map<int, std::vector<kv::Token>> silent_;  ///< by choice: tokens that brought no text yet
  std::size_t pending_bytes_ = 0;
  engine::Usage usage_;
  std::optional<engine::Clock::time_point> first_token_;
  std::optional<sampling::Finish> finish_;
  std::optional<double> queue_seconds_;
  RequestError no_memory_;  ///< made while there is some
  std::optional<RequestError> error_;
  std::optional<engine::Refusal> refusal_;
};

}  // namespace coppice::server
