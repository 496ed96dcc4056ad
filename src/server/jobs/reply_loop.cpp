#include "server/jobs/reply_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include "check/assert.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

double seconds(engine::Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// Tells the observer how long it took.
class Stopwatch {
 public:
  Stopwatch(const Job& job, engine::Clock::time_point start, ReplyObserver& observer)
      : job_(job), start_(start), observer_(observer) {}
  /// The job may have news.
  void look() {
    if (told_ || !job_.first_token()) return;
    told_ = true;
    observer_.observe_first_token(seconds(*job_.first_token() - start_));
  }
  /// REQUIRES: job.done().
  void end() {
    COPPICE_ASSERT(job_.done());
    if (job_.refusal()) observer_.count_rejected(*job_.refusal());
    if (job_.error()) return;
    const auto now = engine::Clock::now();
    observer_.observe_request(seconds(now - start_), seconds(now - job_.first_token().value_or(now)),
                              job_.usage().completion_tokens / job_.n_choices());
  }

 private:
  const Job& job_;
  engine::Clock::time_point start_;
  ReplyObserver& observer_;
  bool told_ = false;  // the first token's time
};

// A comment. No empty line follows it: to some clients that would be the end of an event without data.
asio::awaitable<void> write_ping(const ReplyTerms& terms, ReplyWriter& out) {
  const std::string why = terms.silent_for ? terms.silent_for() : std::string();
  if (!out.begun()) co_await out.begin_stream();
  co_await out.write(fmt::format(": {}\n", why.empty() ? "keep-alive" : why));
}

/// Work that somebody waits for, with something else to do now and then.
class Work {
 public:
  explicit Work(const asio::any_io_executor& executor) : ended_(executor) {}

  /// It is over when this frame is, however it goes.
  asio::awaitable<void> run(asio::awaitable<void> work) {
    struct End {
      ~End() {
        work->over_ = true;
        work->ended_.cancel();
      }
      Work* work;
    } const end{this};
    try {
      co_await std::move(work);
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  /// True: it is over. False: it is `at`.
  asio::awaitable<bool> wait(engine::Clock::time_point at) {
    if (over_) co_return true;
    ended_.expires_at(at);
    boost::system::error_code ignored;
    co_await ended_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    co_return over_;
  }

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  asio::steady_timer ended_;
  bool over_ = false;
  std::exception_ptr failure_;
};

struct TooLate {};

/// Until the work is over. Throws TooLate.
asio::awaitable<void> attend(Work& work, engine::Clock::time_point deadline, const ReplyTerms& terms,
                             ReplyWriter& out) {
  constexpr auto kNever = engine::Clock::time_point::max();
  while (true) {
    const auto now = engine::Clock::now();
    const auto ping = terms.stream && terms.ping < kNever - now ? now + terms.ping : kNever;
    if (co_await work.wait(std::min(ping, deadline))) co_return;
    if (engine::Clock::now() >= deadline) throw TooLate();
    co_await write_ping(terms, out);
  }
}

asio::awaitable<void> stream(Job& job, Answer& answer, Stopwatch watch, const ReplyTerms& terms, ReplyWriter& out) {
  while (true) {
    const bool news = co_await job.wait(terms.ping);
    watch.look();
    if (!news) {
      co_await write_ping(terms, out);
      continue;
    }
    const bool last = job.done();  // now: what comes during the writes below is for the next round
    std::string bytes;
    for (Delta& delta : job.take()) bytes += answer.delta(std::move(delta));
    if (last) watch.end();
    if (job.error()) {
      RequestError error = *job.error();
      if (!out.begun()) throw RequestError(error);
      error.set_request_id(terms.request_id);
      bytes += answer.error(error);
    } else if (last) {
      bytes += answer.end(job.usage(), job.reports());
    }
    if (!out.begun()) co_await out.begin_stream();
    co_await out.write(bytes);
    if (last) break;
  }
  co_await out.end_stream();
  // Its client took the end, but nothing for a long time before: it counts as one that lets a write run out of time.
  if (job.error() && job.error()->code() == kSlowReader)
    throw boost::system::system_error(asio::error::timed_out, "the client reads too slowly");
}

asio::awaitable<std::string> whole(Job& job, Answer& answer, Stopwatch watch, std::size_t max_bytes) {
  const auto check_size = [&] {
    if (answer.bytes() > max_bytes)
      throw RequestError(400,
                         fmt::format("The answer is over {} bytes: take it as a stream, or ask for less (tokens, "
                                     "choices, log-probabilities).",
                                     max_bytes),
                         "", "answer_too_large");
  };
  check_size();  // of its echoes
  do {
    co_await job.wait();
    watch.look();
    for (Delta& delta : job.take()) {
      answer.delta(std::move(delta));
      check_size();
    }
  } while (!job.done());
  watch.end();
  if (job.error()) throw RequestError(*job.error());
  co_return answer.end(job.usage(), job.reports());
}

}  // namespace

asio::awaitable<void> reply_with(Job& job, Answer& answer, ReplyTerms terms, ReplyObserver& observer,
                                 ReplyWriter& out) {
  const Stopwatch watch(job, terms.start, observer);
  if (terms.stream) {
    co_await stream(job, answer, watch, terms, out);
  } else {
    Reply reply;
    reply.body = co_await whole(job, answer, watch, terms.max_answer_bytes);
    co_await out.send(std::move(reply));
  }
}

asio::awaitable<bool> keep_alive(asio::awaitable<void> work, std::optional<engine::Clock::time_point> deadline,
                                 const ReplyTerms& terms, ReplyWriter& out) {
  using asio::experimental::awaitable_operators::operator&&;
  Work under_way(co_await asio::this_coro::executor);
  try {
    // What the second throws has the operator cancel the first, and wait for its end.
    co_await (under_way.run(std::move(work)) &&
              attend(under_way, deadline.value_or(engine::Clock::time_point::max()), terms, out));
  } catch (const TooLate&) {
    co_return false;
  }
  under_way.rethrow();
  co_return true;
}

}  // namespace coppice::server
