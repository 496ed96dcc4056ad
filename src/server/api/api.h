// Api: the routes and what they do. From an HttpRequest to a reply, through the engine.
//
// api_generate.cpp has what generations need, api_responses.cpp the routes to stored responses, api_prefixes.cpp
// those to pinned prefixes, api.cpp the rest.
//
// Belongs to the io thread. Bodies are parsed, rendered and tokenized on workers, grammars compiled on
// another, and JSON of what is kept (the tree, pins, stored responses) is made on one more; nothing else leaves the
// thread.
//
// Invariants
//   1. Every reply is JSON (or Prometheus' text, or a stream of events). Errors are in the words of the route's
//      dialect, or OpenAI's.
//   2. Where keys are wanted, everything but probes (/health, /livez, /readyz), the page's own files and a browser's
//      preflight wants one: figures tell about other people's requests, too.
//   3. A handler's coroutine owns its Job: when it ends, for whatever reason, the engine knows.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "check/thread_role.h"
#include "server/api/api_keys.h"
#include "server/api/base/api_config.h"
#include "server/api/base/cache_report_json.h"
#include "server/api/base/dialect.h"
#include "server/api/browser_guard.h"
#include "server/api/cache/cache_feed.h"
#include "server/api/cors.h"
#include "server/api/loading.h"
#include "server/api/metrics.h"
#include "server/api/request_log.h"
#include "server/api/responses/response_archive.h"
#include "server/api/responses/response_store.h"
#include "server/api/route_table.h"
#include "server/fetch/fetcher.h"
#include "server/http/http.h"
#include "server/jobs/event_hub.h"
#include "server/jobs/model.h"
#include "server/jobs/preparation.h"
#include "server/jobs/work_queue.h"

namespace coppice::server {

class Api final : public HttpHandler {
 public:
  /// Throws KeyFileError, and std::runtime_error if the request log cannot be written.
  /// The threads for grammars: one for what takes a moment, one for what takes more.
  struct Compilers {
    WorkQueue& quick;
    WorkQueue& slow;
  };
  Api(ApiConfig config, EventHub& hub, WorkQueue& worker, Compilers compilers, WorkQueue& viewing);

  /// Generations in this dialect, at POST `path`. REQUIRES: nothing else is there, and no request has come yet.
  void add_dialect(std::string path, std::unique_ptr<Dialect> dialect);

  void admit(HttpRequest& request) override;
  boost::asio::awaitable<void> handle(HttpRequest& request, ReplyWriter& out) override;
  Reply refuse(const RequestError& error, std::string_view method, std::string_view path) override;

  /// Says in the log how it went. Requests that were admitted go on. False: it is to be tried again, when there are
  /// descriptors.
  bool reload_keys();

  const ResponseStore& responses() const { return responses_; }  ///< any thread
  void restore_responses(std::vector<ArchivedResponse> responses);

  // What /health says.
  void set_progress(std::string stage, double fraction);
  void set_ready(std::shared_ptr<Model> model);
  void set_draining();

  /// For /metrics.
  void set_http_figures(std::function<HttpFigures()> figures) { http_figures_ = std::move(figures); }

 private:
  /// In the words of what is at the path, or else above it.
  Reply error_reply(const RequestError& error, std::string_view path) const;

  boost::asio::awaitable<void> health(HttpRequest& request, ReplyWriter& out);
  /// 200 as long as the process answers.
  boost::asio::awaitable<void> live(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> version(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> models(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> props(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> slots(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> sglang_model_info(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> sglang_server_info(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> tokenizer_info(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> metrics(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> cache_stats(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> get_response(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> response_input(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> delete_response(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> count_response_input(HttpRequest& request, ReplyWriter& out);
  /// The one that the path names. Throws RequestError (404).
  std::shared_ptr<const StoredResponse> stored_response(const HttpRequest& request);
  boost::asio::awaitable<void> cache_tree(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> cache_events(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> page(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> list_prefixes(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> get_prefix(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> delete_prefix(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<void> reset_cache(HttpRequest& request, ReplyWriter& out);
  boost::asio::awaitable<engine::PrefixAnswer> ask_engine(engine::PrefixCommand command);
  /// Of a request whose path names a prefix, with the query's `cache_salt`.
  engine::PrefixOwner named_owner(const HttpRequest& request) const;
  /// The namespace of a request with this `cache_salt`, and who pays for what it pins. Any thread.
  engine::PrefixOwner prefix_owner(const HttpRequest& request, std::string cache_salt) const;
  template <std::string (*make_reply)(const Model&, std::string_view)>
  boost::asio::awaitable<void> convert(HttpRequest& request, ReplyWriter& out);
  /// A reply that is made of the body, in a turn of a worker, and sent.
  boost::asio::awaitable<void> send_converted(HttpRequest& request, std::function<std::string()> make,
                                              ReplyWriter& out);
  using Deadline = std::optional<engine::Clock::time_point>;  ///< none: never
  /// Image files that are held for as long as their prompt is prepared. Their bytes count as the body's. Throws
  /// RequestError.
  boost::asio::awaitable<std::vector<vision::FetchedFiles::File>> fetch(HttpRequest& request, MissingPictures missing,
                                                                        Deadline deadline);

  /// What admit() let through. Throws what handle() answers for.
  boost::asio::awaitable<void> answer(const Route* route, HttpRequest& request, ReplyWriter& out,
                                      std::unique_ptr<Answer>& begun, RequestRecord& record);
  /// The error that the exception in hand is to the client. Throws what is the connection's own affair.
  RequestError failure_of(const HttpRequest& request);
  /// `answer`: set when it begins, for what is to be said if it breaks off. `record`: gets what the log is to tell.
  boost::asio::awaitable<void> generate(const Dialect& dialect, HttpRequest& request, ReplyWriter& out,
                                        std::unique_ptr<Answer>& answer, RequestRecord& record);
  /// All but the rows of its pictures. Counted if it is refused, and so is encode().
  boost::asio::awaitable<std::unique_ptr<Preparation>> take_in(const Dialect& dialect, HttpRequest& request,
                                                               engine::Clock::time_point asked_at);
  /// Until its pictures have all rows. Throws as prepare().
  boost::asio::awaitable<void> encode(Preparation& preparation, const HttpRequest& request, Deadline deadline,
                                      RequestRecord& record);
  /// Takes of what was prepared what only the answer needs. `name`: its id, but for the dialect's prefix.
  std::unique_ptr<Answer> begin_answer(const Dialect& dialect, Prepared& prepared, std::string name) const;
  /// The same, counted as a refusal.
  RequestError counted(RequestError error);
  /// Any thread.
  GenerationRequest parse(const Dialect& dialect, const ModelFacts& facts, const HttpRequest& request) const;
  /// As WorkQueue::run(), measured. Before each turn throws RequestError if the server drains or the deadline is over,
  /// which a step may set.
  boost::asio::awaitable<void> prepare(WorkQueue& worker, const std::string& key, std::size_t bytes,
                                       const Deadline& deadline, std::function<bool()> step);
  /// The earlier of the operator's limit and the request's own, which count from `asked_at`.
  Deadline deadline_of(engine::Clock::time_point asked_at, std::optional<double> timeout_seconds) const;
  /// A reply that is made in one turn of viewing_.
  boost::asio::awaitable<void> send_made(std::function<std::string()> make, ReplyWriter& out);
  static constexpr const char* kModelPath = "/v1/models/";  ///< a model's name follows
  Model& ready_model() const;
  RequestError no_answer() const;  ///< of the engine, to a question
  void check_key(HttpRequest& request) const;
  /// What belongs to keys that are there no more: pins, stored responses, open feeds.
  void end_revoked();
  std::set<std::string> tenants() const;  ///< of all keys; without keys "" alone

  check::ThreadRole io_thread_;
  ApiConfig config_;
  ApiKeys keys_;
  ApiKeys operator_keys_;
  Cors cors_;
  BrowserGuard guard_;
  EventHub& hub_;
  WorkQueue& worker_;
  Compilers compilers_;
  WorkQueue& viewing_;                  ///< for JSON of what is kept
  std::unique_ptr<WorkQueue> decoder_;  ///< of image files; null: the model sees no pictures
  std::unique_ptr<WorkQueue> encoder_;  ///< ... of pictures, one at a time
  Metrics metrics_;
  RequestLog request_log_;
  ResponseStore responses_;
  CacheFeed feed_;
  const Fetcher fetcher_;
  std::unique_ptr<WorkQueue> fetching_;  ///< of image files; null: nothing is fetched
  RouteTable routes_;
  std::unique_ptr<Dialect> default_dialect_;  ///< for errors where no route has another
  std::function<HttpFigures()> http_figures_ = [] { return HttpFigures{}; };
  std::shared_ptr<Model> model_;
  int key_generation_ = 0;         ///< another one when keys have gone
  std::set<std::string> revoked_;  ///< tenants whose keys have gone
  std::string fingerprint_;        ///< once there is a model
  Loading loading_;
  std::atomic<bool> draining_ = false;  ///< the worker reads it
  std::int64_t started_;                ///< seconds since 1970
};

}  // namespace coppice::server
