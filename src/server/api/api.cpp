// A new endpoint: a route in Api's constructor and a handler, here or in a file of its own (api_info.cpp,
// api_responses.cpp); what builds its JSON in a file beside it (tokenize.cpp, server_info.cpp). A route that needs no
// key is added with `open`. Text work goes to the worker by Api::prepare(); figures come from Model::snapshot();
// generation is a Job of server/jobs.
#include "server/api/api.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/beast/core/string.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "check/assert.h"
#include "port/process.h"
#include "server/api/anthropic/anthropic_dialect.h"
#include "server/api/cache/prefix_dialect.h"
#include "server/api/embeddings/embedding_dialect.h"
#include "server/api/llama/llama_dialect.h"
#include "server/api/openai/openai_dialect.h"
#include "server/api/page_files.h"
#include "server/api/responses/responses_dialect.h"
#include "server/api/server_info.h"
#include "server/api/tokenize.h"
#include "server/http/http_head.h"
#include "text/utf8_stream.h"
#include "text/vocabulary.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr int kEncoderNice = 5;  // as the io thread and the workers: streams come first, and a picture comes, too

void step_aside() {
  if (!port::make_thread_nicer(kEncoderNice)) SPDLOG_WARN("a thread for images keeps its priority: setpriority failed");
}

constexpr int kFetching = 4;  // requests whose images are fetched at once

// Files that are decoded at once, and those that pause in the middle while other keys' are: each takes up to 7 bytes a
// pixel. One more is decoded to be encoded, in turns that never pause.
constexpr int kDecoding = 2, kPausedDecodings = 2;

constexpr const char* kOtherPath = "other";  // unknown paths must not become label values

void log_failure(std::string_view method, std::string_view path, std::string_view client, const RequestError& error) {
  constexpr std::size_t kMost = 200;  // bytes of a path
  spdlog::info("{} {}{}: {} {} ({})", method.empty() ? "request" : method, path.substr(0, kMost),
               client.empty() ? "" : fmt::format(" of {}", client), error.status(), error.what(), error.request_id());
}

/// A request's line in the request log, written when this ends: also when the client has left, and the coroutine with
/// it.
class LoggedRequest {
 public:
  /// `quiet`: a success has no line.
  LoggedRequest(RequestLog& log, const HttpRequest& request, bool quiet) : log_(log), quiet_(quiet) {
    record.id = request.id;
    record.method = request.method;
    record.route = kOtherPath;
    record.key = request.client;
    record.status = kClientGone;
  }
  LoggedRequest(const LoggedRequest&) = delete;
  LoggedRequest& operator=(const LoggedRequest&) = delete;
  ~LoggedRequest() {
    if (quiet_ && record.status == 200) return;
    if (record.status == kClientGone) record.end = "client_gone";
    record.total_seconds = std::chrono::duration<double>(engine::Clock::now() - start_).count();
    try {
      log_.write(record);
    } catch (const std::exception&) {  // no memory for a line: it is lost
    }
  }

  RequestRecord record;

 private:
  static constexpr int kClientGone = 499;  // as other servers log it; nobody gets such a reply

  RequestLog& log_;
  bool quiet_;
  engine::Clock::time_point start_ = engine::Clock::now();
};

/// Of a request whose key is none of ours. It quotes nothing of the field.
const char* key_complaint(const std::string& authorization) {
  if (authorization.empty()) return "An API key is wanted: send the field 'Authorization: Bearer KEY', once.";
  if (!boost::beast::iequals(authorization.substr(0, authorization.find(' ')), "Bearer"))
    return "The field 'Authorization' must have the word Bearer before the key: 'Authorization: Bearer KEY'.";
  return "Incorrect API key provided.";
}

/// What a client with a wrong base URL should know; empty: nothing. `found`: is there something at a path?
std::string base_url_hint(std::string_view path, const std::function<bool(std::string_view)>& found) {
  constexpr std::string_view kVersion = "/v1";
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  if (path == kVersion)
    return " It is the base URL for OpenAI's clients, which ask for paths below it, such as /v1/chat/completions and "
           "/v1/models.";
  if (path.starts_with("/v1/v1")) return " The client adds /v1 to its base URL by itself: leave it out there.";
  if (const std::string longer = std::string(kVersion) + std::string(path); found(longer))
    return fmt::format(" There is {}: the client's base URL should end with /v1.", longer);
  return "";
}

}  // namespace

Api::Api(ApiConfig config, EventHub& hub, WorkQueue& worker, Compilers compilers, WorkQueue& viewing)
    : config_(std::move(config)),
      keys_(config_.api_keys_file, config_.api_keys),
      operator_keys_(config_.operator_keys_file),
      cors_(config_.cors_origins),
      guard_(config_.host, config_.hosts),
      hub_(hub),
      worker_(worker),
      compilers_(compilers),
      viewing_(viewing),
      request_log_(config_.request_log),
      responses_(config_.response_store_bytes),
      feed_(hub.io(), viewing),
      fetcher_(MediaHosts(config_.media_hosts), {.bytes = config_.media_bytes, .seconds = config_.media_seconds}),
      fetching_(fetcher_.off() ? nullptr : std::make_unique<WorkQueue>(step_aside, kFetching)),
      default_dialect_(std::make_unique<OpenAiDialect>(Endpoint::kChat)),
      started_(std::time(nullptr)) {
  const auto add = [this](std::string path, const char* method, Route::Action action, bool open = false) {
    routes_.add({.path = std::move(path), .method = method, .action = action, .open = open});
  };
  for (const char* path : {"/health", "/v1/health", "/readyz"}) add(path, "GET", &Api::health, /*open=*/true);
  add("/livez", "GET", &Api::live, /*open=*/true);
  add("/version", "GET", &Api::version);
  if (config_.serves_page)
    for (const PageFile& file : page_files()) add(std::string(file.path), "GET", &Api::page, /*open=*/true);
  add("/metrics", "GET", &Api::metrics);
  add("/v1/cache/stats", "GET", &Api::cache_stats);
  add("/v1/cache/tree", "GET", &Api::cache_tree);
  add("/v1/cache/events", "GET", &Api::cache_events);
  add("/v1/cache/prefixes", "GET", &Api::list_prefixes);
  add("/v1/cache/prefixes/{id}", "GET", &Api::get_prefix);
  add("/v1/cache/prefixes/{id}", "DELETE", &Api::delete_prefix);
  add("/v1/cache/reset", "POST", &Api::reset_cache);
  add_dialect("/v1/cache/prefixes", std::make_unique<PrefixDialect>());
  add("/props", "GET", &Api::props);
  add("/slots", "GET", &Api::slots);
  add("/tokenizer_info", "GET", &Api::tokenizer_info);
  for (const char* path : {"/get_model_info", "/model_info"}) add(path, "GET", &Api::sglang_model_info);
  for (const char* path : {"/get_server_info", "/server_info"}) add(path, "GET", &Api::sglang_server_info);
  add("/tokenize", "POST", &Api::convert<tokenize_reply>);
  add("/detokenize", "POST", &Api::convert<detokenize_reply>);
  add("/apply-template", "POST", &Api::convert<template_reply>);
  add(kModelPath, "GET", &Api::models);  // and all below it
  for (const std::string root : {"/v1", ""}) {
    add(root + "/models", "GET", &Api::models);
    add(root + "/chat/completions/render", "POST", &Api::convert<render_chat_reply>);
    add(root + "/chat/completions/input_tokens", "POST", &Api::convert<count_reply>);
    add_dialect(root + "/chat/completions", std::make_unique<OpenAiDialect>(Endpoint::kChat));
    add_dialect(root + "/responses", std::make_unique<ResponsesDialect>(responses_));
    add(root + "/responses/input_tokens", "POST", &Api::count_response_input);
    add(root + "/responses/{id}", "GET", &Api::get_response);
    add(root + "/responses/{id}", "DELETE", &Api::delete_response);
    add(root + "/responses/{id}/input_items", "GET", &Api::response_input);
    for (const char* path : {"/rerank", "/reranking"}) add(root + path, "POST", &Api::convert<rerank_reply>);
  }
  add_dialect("/v1/messages", std::make_unique<AnthropicDialect>(config_.keeps_billing));
  add("/v1/messages/count_tokens", "POST",
      config_.keeps_billing ? &Api::convert<anthropic_whole_count_reply> : &Api::convert<anthropic_count_reply>);
  add("/v1/completions/render", "POST", &Api::convert<render_prompts_reply>);
  add_dialect("/v1/completions", std::make_unique<OpenAiDialect>(Endpoint::kCompletions));
  for (const char* path : {"/completion", "/completions"}) add_dialect(path, std::make_unique<LlamaDialect>());
  add_dialect("/v1/embeddings", std::make_unique<EmbeddingDialect>(EmbeddingForm::kOpenAi));
  for (const char* path : {"/embedding", "/embeddings"})
    add_dialect(path, std::make_unique<EmbeddingDialect>(EmbeddingForm::kLlama));
}

void Api::add_dialect(std::string path, std::unique_ptr<Dialect> dialect) {
  routes_.add({.path = std::move(path), .method = "POST", .dialect = std::move(dialect)});
}

void Api::admit(HttpRequest& request) {
  COPPICE_ASSERT(io_thread_.mine());
  request.reply_fields = cors_.fields(request.origin);
  const Route* const route = routes_.find(request.path);
  const bool open = route != nullptr && route->open;
  if (!keys_.wanted()) guard_.check(request, open, cors_);
  if (open || cors_.is_preflight(request)) return;
  check_key(request);
  if (draining_ && request.method == "POST") throw RequestError::shutting_down();
}

void Api::check_key(HttpRequest& request) const {
  if (!keys_.wanted()) return;
  const ApiKey* key = keys_.find(request.authorization);
  if (key == nullptr) key = operator_keys_.find(request.authorization);
  if (key == nullptr) throw RequestError(401, key_complaint(request.authorization), "", "invalid_api_key");
  request.client = key->name;
  request.tenant = tenant_salt(*key);
}

Reply Api::refuse(const RequestError& error, std::string_view method, std::string_view path) {
  COPPICE_ASSERT(io_thread_.mine());
  metrics_.count_rejected(rejection_of(error.status(), draining_));
  metrics_.count_request(kOtherPath, error.status());
  log_failure(method, path, "", error);
  const Route* const route = routes_.find(path);
  request_log_.write({.id = error.request_id(),
                      .method = std::string(method),
                      .route = route == nullptr ? kOtherPath : route->path,
                      .status = error.status(),
                      .end = error.code()});
  return error_reply(error, path);
}

Reply Api::error_reply(const RequestError& error, std::string_view path) const {
  const Route* route = routes_.find(path);
  while ((route == nullptr || !route->dialect) && path.contains('/')) {
    path = path.substr(0, path.rfind('/'));
    route = routes_.find(path);
  }
  const Dialect& words = route != nullptr && route->dialect ? *route->dialect : *default_dialect_;
  Reply reply{.status = error.status(), .body = words.error(error)};
  if (const auto seconds = error.retry_after_s()) reply.headers.emplace_back("Retry-After", std::to_string(*seconds));
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status() == 415) reply.headers.emplace_back("Accept-Encoding", "identity");
  return reply;
}

bool Api::reload_keys() {
  COPPICE_ASSERT(io_thread_.mine());
  try {
    std::vector<ApiKey> keys = keys_.read(), operator_keys = operator_keys_.read();
    revoked_.merge(tenants());
    keys_.replace(std::move(keys));
    operator_keys_.replace(std::move(operator_keys));
    for (const std::string& tenant : tenants()) revoked_.erase(tenant);
    if (keys_.wanted()) end_revoked();
    SPDLOG_INFO("{} API keys in '{}'", keys_.size(), keys_.path());
  } catch (const NoDescriptors& e) {
    SPDLOG_ERROR("{} Until then the keys stay as they were.", e.what());
    return false;
  } catch (const std::exception& e) {
    SPDLOG_ERROR("{} The keys stay as they were.", e.what());
  }
  return true;
}

void Api::end_revoked() {
  ++key_generation_;
  responses_.keep_tenants(tenants());
  if (!model_) return;
  model_->ask({.kind = engine::PrefixCommand::Kind::kKeepPayers, .payers = tenants(), .revoked = revoked_}, {});
}

std::set<std::string> Api::tenants() const {
  std::set<std::string> tenants;
  keys_.add_tenants(tenants);
  operator_keys_.add_tenants(tenants);
  if (!keys_.wanted()) tenants.emplace();
  return tenants;
}

void Api::restore_responses(std::vector<ArchivedResponse> responses) {
  COPPICE_ASSERT(io_thread_.mine());
  const std::size_t n = responses.size(), found = restore(std::move(responses), tenants(), responses_);
  if (n > 0) SPDLOG_INFO("{} stored responses are there again", found);
}

asio::awaitable<void> Api::answer(const Route* route, HttpRequest& request, ReplyWriter& out,
                                  std::unique_ptr<Answer>& begun, RequestRecord& record) {
  if (route == nullptr)
    throw RequestError(
        404,
        fmt::format(
            "There is nothing at {}.{}", text::to_utf8(request.path),
            base_url_hint(request.path, [this](std::string_view path) { return routes_.find(path) != nullptr; })),
        "", "not_found");
  if (request.method != route->method)
    throw RequestError(405,
                       fmt::format("{} wants {}, not {}.", request.path, routes_.methods(request.path), request.method),
                       "", "method_not_allowed");
  record.route = route->path;
  if (request.method == "GET") request.drop_body();  // nobody looks at it
  co_await (route->dialect ? generate(*route->dialect, request, out, begun, record)
                           : (this->*route->action)(request, out));
}

RequestError Api::failure_of(const HttpRequest& request) {
  try {
    throw;
  } catch (const RequestError& e) {
    return e;
  } catch (const text::UnknownCharacter& e) {
    return {400, e.what(), "", "unknown_character"};
  } catch (const boost::system::system_error&) {
    metrics_.count_client_gone();
    throw;
  } catch (const std::bad_alloc&) {  // on this thread, or in the request's work on the worker
    SPDLOG_ERROR("{} {}: out of memory", request.method, request.path);
    return RequestError::unavailable("The server is out of memory.");
  } catch (const std::exception& e) {
    SPDLOG_ERROR("{} {}: {}", request.method, request.path, e.what());
    return RequestError::server_error(500, "An internal error: see the server's log.", "internal_error");
  }
}

asio::awaitable<void> Api::handle(HttpRequest& request, ReplyWriter& out) {
  COPPICE_ASSERT(io_thread_.mine());
  if (cors_.is_preflight(request)) co_return co_await out.send(cors_.preflight(request));
  const Route* const route = routes_.find(request.path, request.method);
  LoggedRequest logged(request_log_, request, route != nullptr && (route->open || route->path == "/metrics"));
  std::optional<RequestError> failure;
  std::unique_ptr<Answer> begun;
  try {
    co_await answer(route, request, out, begun, logged.record);
    logged.record.status = 200;
    metrics_.count_request(logged.record.route, 200);
  } catch (...) {
    failure = failure_of(request);
  }
  if (!failure) co_return;
  failure->set_request_id(request.id);
  request.drop_body();  // a client that takes the answer slowly must not hold it meanwhile
  metrics_.count_request(logged.record.route, failure->status());
  log_failure(request.method, request.path, request.client, *failure);
  logged.record.status = out.begun() ? 200 : failure->status();
  logged.record.end = failure->code().empty() ? "error" : failure->code();
  if (!out.begun()) {
    Reply reply = error_reply(*failure, request.path);
    if (failure->status() == 405) reply.headers.emplace_back("Allow", routes_.methods(request.path));
    co_await out.send(std::move(reply));
  } else if (out.streaming() && begun) {
    co_await out.write(begun->error(*failure));
    co_await out.end_stream();
  } else {
    throw *failure;  // in the middle of something: only closing is understood
  }
}

void Api::set_progress(std::string stage, double fraction) {
  COPPICE_ASSERT(io_thread_.mine());
  loading_.set(std::move(stage), fraction, Loading::Clock::now());
}

void Api::set_ready(std::shared_ptr<Model> model) {
  COPPICE_ASSERT(io_thread_.mine());
  model_ = std::move(model);
  fingerprint_ = fingerprint(config_, model_->facts());
  if (!revoked_.empty()) end_revoked();
  if (model_->pictures() != nullptr) {
    decoder_ = std::make_unique<WorkQueue>(step_aside, kDecoding, kPausedDecodings);
    encoder_ = std::make_unique<WorkQueue>(step_aside, 1, 0);
  }
  hub_.on_report(
      [this](engine::RequestId id, const engine::CacheReport& report) { log_cache_report(id, report, *model_); });
}

void Api::set_draining() {
  COPPICE_ASSERT(io_thread_.mine());
  draining_ = true;
}

Model& Api::ready_model() const {
  COPPICE_ASSERT(io_thread_.mine());
  if (draining_) throw RequestError::shutting_down();
  if (!model_)
    throw RequestError::unavailable(
        fmt::format("The model is loading ({} {:.0f} %).", loading_.stage(), loading_.fraction() * 100),
        loading_.retry_after_s(Loading::Clock::now()));
  return *model_;
}

RequestError Api::no_answer() const {
  return draining_ ? RequestError::shutting_down() : RequestError::unavailable("The server is out of memory.");
}

asio::awaitable<void> Api::send_made(std::function<std::string()> make, ReplyWriter& out) {
  std::string body;
  co_await viewing_.run({}, 0, [&] {
    body = make();
    return true;
  });
  co_await out.send({.body = std::move(body)});
}

template <std::string (*make_reply)(const Model&, std::string_view)>
asio::awaitable<void> Api::convert(HttpRequest& request, ReplyWriter& out) {
  const Model& model = ready_model();
  co_await send_converted(request, [&] { return make_reply(model, request.body); }, out);
}

asio::awaitable<void> Api::send_converted(HttpRequest& request, std::function<std::string()> make, ReplyWriter& out) {
  const Deadline deadline = deadline_of(engine::Clock::now(), std::nullopt);
  std::string body;
  std::optional<MissingPictures> missing;
  bool decodes = false;
  const auto step = [&] {
    try {
      body = make();
    } catch (MissingPictures& pictures) {
      missing = std::move(pictures);
    } catch (const vision::NotDecoded&) {
      decodes = true;
    }
    return true;
  };
  co_await prepare(worker_, request.tenant, request.body.size(), deadline, step);
  std::vector<vision::FetchedFiles::File> held;
  const bool again = missing || decodes;
  if (missing) held = co_await fetch(request, *std::move(missing), deadline);
  if (again) co_await prepare(*decoder_, request.tenant, 0, deadline, step);
  request.drop_body();
  co_await out.send({.body = std::move(body)});
}

}  // namespace coppice::server
