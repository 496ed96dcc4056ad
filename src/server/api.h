// Api: the routes and what they do. From an HttpRequest to a reply, through the engine.
//
// Belongs to the io thread. Bodies are parsed, rendered and tokenized on the worker; nothing else leaves the thread.
//
// Invariants
//   1. Every reply is JSON (or Prometheus' text, or a stream of events), errors in OpenAI's form.
//   2. Where keys are wanted, everything but /health wants one: figures tell about other people's requests, too.
//   3. A handler's coroutine owns its Job: when it ends, for whatever reason, the engine knows.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/api_keys.h"
#include "server/cache_report.h"
#include "server/event_hub.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/model.h"
#include "server/openai_request.h"
#include "server/prepare.h"
#include "server/work_queue.h"

namespace coppice::server {

class Job;

struct ApiConfig {
  ServedNames names;
  std::size_t max_pending_bytes = std::size_t{1} << 20;  ///< per stream, not taken by its client
  std::size_t max_answer_bytes = std::size_t{16} << 20;  ///< of JSON, of an answer that is not a stream
  double request_seconds = 0;                            ///< deadline of a request; 0: none
  double ping_seconds = 5;                               ///< a stream's longest silence; 0: no limit
  std::string api_keys_file;                             ///< see ApiKeys; empty: everybody may come in
  bool isolate_keys = false;                             ///< no key's requests share the cache with another's
  CacheReports cache_reports = CacheReports::kText;
};

class Api final : public HttpHandler {
 public:
  /// Throws KeyFileError.
  Api(ApiConfig config, EventHub& hub, WorkQueue& worker);

  void admit(HttpRequest& request) override;
  boost::asio::awaitable<void> handle(HttpRequest& request, ReplyWriter& out) override;
  void refused(int status) noexcept override;

  /// Says in the log how it went. Requests that were admitted go on.
  void reload_keys();

  // What /health says.
  void set_progress(std::string stage, double fraction);
  void set_ready(std::shared_ptr<Model> model);
  void set_draining() { draining_ = true; }

  /// For /metrics.
  void set_http_figures(std::function<HttpFigures()> figures) { http_figures_ = std::move(figures); }

 private:
  using Action = boost::asio::awaitable<void> (Api::*)(HttpRequest&, ReplyWriter&);
  struct Route {
    const char* path;
    const char* method;
    Action action;
  };
  static const std::vector<Route>& routes();
  const Route& find(const HttpRequest& request) const;

  boost::asio::awaitable<void> health(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> models(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> metrics(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> cache_stats(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> tokenize(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> detokenize(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> chat(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> completions(HttpRequest& request, ReplyWriter& out);

  /// A request whose answer is known. Want of memory leaves it uncounted: the answer is what matters.
  void count(const char* path, int status) noexcept;
  /// What the engine gets for it, counted if it is refused.
  boost::asio::awaitable<Prepared> take_in(Endpoint endpoint, HttpRequest& request);
  boost::asio::awaitable<void> generate(Endpoint endpoint, HttpRequest& request, ReplyWriter& out);
  /// Runs `step` on the worker, once a turn, until it returns true or throws: then throws the same. When a turn comes, throws
  /// ApiError instead if the server drains or the operator's time for a request is over, and system_error if the client is
  /// gone. `bytes`: of the body that it is about.
  boost::asio::awaitable<void> on_worker(std::size_t bytes, std::function<bool()> step);
  Model& ready_model() const;
  void check_key(HttpRequest& request) const;

  ApiConfig config_;
  ApiKeys keys_;
  EventHub& hub_;
  WorkQueue& worker_;
  Metrics metrics_;
  std::function<HttpFigures()> http_figures_ = [] { return HttpFigures{}; };
  std::shared_ptr<Model> model_;
  std::string stage_ = "starting";
  double fraction_ = 0;
  std::atomic<bool> draining_ = false;  ///< the worker reads it
  std::int64_t started_;                ///< seconds since 1970
};

}  // namespace coppice::server
