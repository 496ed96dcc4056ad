#include "server/generation_reply.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <boost/asio/error.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <ctime>
#include <optional>
#include <random>
#include <string_view>
#include <utility>

#include "server/openai_response.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr std::string_view kPing = ": keep-alive\n\n";  // a comment: clients of server-sent events skip it

double seconds(engine::Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// Unique enough across restarts and machines: it only names a response.
std::string response_id(Endpoint endpoint) {
  static std::mt19937_64 random{(std::uint64_t{std::random_device{}()} << 32U) ^ std::random_device{}()};
  return fmt::format("{}-{:016x}{:016x}", endpoint == Endpoint::kChat ? "chatcmpl" : "cmpl", random(), random());
}

/// Tells the metrics how long it took.
class Stopwatch {
 public:
  Stopwatch(const Job& job, ReplyClock clock) : job_(job), clock_(clock) {}
  /// The job may have news.
  void look() {
    if (told_ || !job_.first_token()) return;
    told_ = true;
    clock_.metrics.observe_first_token(seconds(*job_.first_token() - clock_.start));
  }
  /// REQUIRES: job.done().
  void end() {
    if (job_.refusal()) clock_.metrics.count_rejected(*job_.refusal());
    if (job_.error()) return;
    const auto now = engine::Clock::now();
    clock_.metrics.observe_request(seconds(now - clock_.start), seconds(now - job_.first_token().value_or(now)),
                                   job_.usage().completion_tokens / job_.n_choices());
  }

 private:
  const Job& job_;
  ReplyClock clock_;
  bool told_ = false;  // the first token's time
};

/// The reports of the job's prompts: an object, or a list where there were several; null where none was asked for, and for
/// a prompt that has none.
Json reports_json(const Job& job, const Prepared& prepared, const CacheReporting& reporting) {
  if (!prepared.parsed.cache_report) return nullptr;
  JsonArray all;
  for (const auto& report : job.reports()) {
    all.push_back(report ? Json(cache_report_json(*report, reporting.model, reporting.how)) : Json(nullptr));
  }
  return all.size() == 1 ? std::move(all.front()) : Json(std::move(all));
}

asio::awaitable<void> stream(Job& job, Prepared& prepared, const CacheReporting& reporting, ResponseHead head,
                             ReplyClock clock, ReplyWriter& out) {
  Stopwatch watch(job, clock);
  ResponseStream events(std::move(head), job.n_choices(), prepared.parsed.sampling.logprobs >= 0,
                        prepared.parsed.include_usage, std::exchange(prepared.echoes, {}));
  while (true) {
    const bool news = co_await job.wait(clock.ping);
    watch.look();
    if (!news) {
      if (!out.begun()) co_await out.begin_stream();
      co_await out.write(kPing);
      continue;
    }
    const bool last = job.done();  // now: what comes during the writes below is for the next round
    std::string bytes;
    for (Delta& delta : job.take()) bytes += events.events(std::move(delta));
    if (last) watch.end();
    if (job.error()) {
      if (!out.begun()) throw ApiError(*job.error());
      bytes += ResponseStream::error(*job.error());
    } else if (last) {
      bytes += events.end(job.usage(), reports_json(job, prepared, reporting));
    }
    if (!out.begun()) co_await out.begin_stream();
    co_await out.write(bytes);
    if (last) break;
  }
  co_await out.end_stream();
  // Its client took the end, but for long nothing: it counts as one that lets a write run out of time.
  if (job.error() && job.error()->code() == kSlowReader)
    throw boost::system::system_error(asio::error::timed_out, "the client reads too slowly");
}

/// A whole answer's JSON.
asio::awaitable<std::string> answer(Job& job, Prepared& prepared, const CacheReporting& reporting, ResponseHead head,
                                    ReplyClock clock, std::size_t max_bytes) {
  Stopwatch watch(job, clock);
  ResponseBody body(std::move(head), job.n_choices(), prepared.parsed.sampling.logprobs >= 0,
                    std::exchange(prepared.echoes, {}));
  while (true) {
    if (body.bytes() > max_bytes)
      throw ApiError(400,
                     fmt::format("The answer is over {} bytes: take it as a stream, or ask for less (tokens, choices, "
                                 "log-probabilities).",
                                 max_bytes),
                     "", "answer_too_large");
    co_await job.wait();
    watch.look();
    for (Delta& delta : job.take()) body.add(std::move(delta));
    if (job.done()) break;
  }
  watch.end();
  if (job.error()) throw ApiError(*job.error());
  co_return body.json(job.usage(), reports_json(job, prepared, reporting));
}

}  // namespace

asio::awaitable<void> reply_with(Job& job, Prepared& prepared, CacheReporting reporting, ReplyClock clock,
                                 std::size_t max_answer_bytes, ReplyWriter& out) {
  const Endpoint endpoint = prepared.parsed.endpoint;
  ResponseHead head{endpoint, response_id(endpoint), std::time(nullptr), prepared.model};
  // The log's cache reports have these numbers: the engine tells of a request that its client may have left.
  spdlog::debug("{}: requests {}", head.id, fmt::join(job.requests(), ", "));
  if (prepared.parsed.stream) {
    co_await stream(job, prepared, reporting, std::move(head), clock, out);
  } else {
    HttpReply reply;
    reply.body = co_await answer(job, prepared, reporting, std::move(head), clock, max_answer_bytes);
    co_await out.send(std::move(reply));
  }
}

}  // namespace coppice::server
