#include "server/api/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <cmath>
#include <ctime>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <utility>

#include "server/api/anthropic_dialect.h"
#include "server/api/embedding_dialect.h"
#include "server/api/json_fields.h"
#include "server/api/llama_dialect.h"
#include "server/api/openai_dialect.h"
#include "server/api/responses_dialect.h"
#include "server/api/server_info.h"
#include "server/api/tokenize.h"
#include "server/http/http_head.h"
#include "server/jobs/job.h"
#include "server/jobs/parsed_answer.h"
#include "server/jobs/reply_loop.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr const char* kHealthPath = "/health";
constexpr const char* kModelPath = "/v1/models/";
constexpr const char* kOtherPath = "other";  // unknown paths must not become label values

RequestError out_of_time_error() {
  return RequestError::server_error(504, "The request ran out of time before it was read.", "deadline_exceeded");
}

Rejection rejection_of(int status, bool draining) {
  switch (status) {
    case 401:
      return Rejection::kUnauthorized;
    case 408:
      return Rejection::kTooSlow;
    case 413:
    case 431:
      return Rejection::kTooLarge;
    case 503:
      return draining ? Rejection::kShutdown : Rejection::kUnavailable;
    case 504:
      return Rejection::kTimeout;
    default:
      return Rejection::kInvalid;
  }
}

engine::Clock::duration clock_duration(double seconds) {
  return std::chrono::duration_cast<engine::Clock::duration>(std::chrono::duration<double>(seconds));
}

/// The earlier of the operator's limit (0: none) and the request's own.
std::optional<engine::Clock::time_point> deadline_of(engine::Clock::time_point start, double limit_seconds,
                                                     std::optional<double> timeout_seconds) {
  double seconds = limit_seconds > 0 ? limit_seconds : std::numeric_limits<double>::infinity();
  if (timeout_seconds) seconds = std::min(seconds, *timeout_seconds);
  if (std::isinf(seconds)) return std::nullopt;
  return start + clock_duration(seconds);
}

/// Unique enough across restarts and machines: it only names an answer.
std::string random_name() {
  static std::mt19937_64 random{(std::uint64_t{std::random_device{}()} << 32U) ^ std::random_device{}()};
  return fmt::format("{:016x}{:016x}", random(), random());
}

/// What no dialect lets through.
void check(const GenerationRequest& request) {
  if (std::ssize(request.prompts) * request.n > std::ptrdiff_t{kMaxChoicesPerRequest})
    throw RequestError::bad_field(request.input_field,
                                  fmt::format("prompts times 'n' must be at most {}", kMaxChoicesPerRequest));
  if (request.cache_salt.size() > kMaxSaltBytes)
    throw RequestError::bad_field("cache_salt", fmt::format("must be at most {} bytes", kMaxSaltBytes));
}

/// Every choice begins with its prompt's text. A stream would hold all of them for a client that doesn't read.
void check_echoes(const Prepared& prepared, std::size_t max_bytes) {
  std::size_t bytes = 0;
  for (const std::string& echo : prepared.echoes) bytes += echo.size();
  for (const std::string& prompt : prepared.prompt_texts) bytes += prompt.size();
  if (bytes * static_cast<std::size_t>(prepared.terms.n) <= max_bytes) return;
  throw RequestError(400, fmt::format("the prompts that the answers repeat have over {} bytes together", max_bytes),
                     prepared.echoes.empty() ? prepared.terms.input_field : "echo", "answer_too_large");
}

}  // namespace

Api::Api(ApiConfig config, EventHub& hub, WorkQueue& worker, WorkQueue& compiling)
    : config_(std::move(config)),
      keys_(config_.api_keys_file, config_.api_keys),
      cors_(config_.cors_origins),
      hub_(hub),
      worker_(worker),
      compiling_(compiling),
      default_dialect_(std::make_unique<OpenAiDialect>(Endpoint::kChat)),
      started_(std::time(nullptr)) {
  const auto add = [this](std::string path, const char* method, Action action) {
    routes_.push_back({std::move(path), method, action, nullptr});
  };
  add(kHealthPath, "GET", &Api::health);
  add("/metrics", "GET", &Api::metrics);
  add("/v1/cache/stats", "GET", &Api::cache_stats);
  add("/props", "GET", &Api::props);
  add("/slots", "GET", &Api::slots);
  add("/tokenize", "POST", &Api::convert<tokenize_reply>);
  add("/detokenize", "POST", &Api::convert<detokenize_reply>);
  add("/apply-template", "POST", &Api::convert<template_reply>);
  add(kModelPath, "GET", &Api::models);  // and all below it
  for (const std::string root : {"/v1", ""}) {
    add(root + "/models", "GET", &Api::models);
    add(root + "/chat/completions/input_tokens", "POST", &Api::convert<count_reply>);
    add_dialect(root + "/chat/completions", std::make_unique<OpenAiDialect>(Endpoint::kChat));
    add_dialect(root + "/responses", std::make_unique<ResponsesDialect>());
    for (const char* path : {"/rerank", "/reranking"}) add(root + path, "POST", &Api::convert<rerank_reply>);
  }
  add_dialect("/v1/messages", std::make_unique<AnthropicDialect>());
  add("/v1/messages/count_tokens", "POST", &Api::convert<anthropic_count_reply>);
  add_dialect("/v1/completions", std::make_unique<OpenAiDialect>(Endpoint::kCompletions));
  for (const char* path : {"/completion", "/completions"}) add_dialect(path, std::make_unique<LlamaDialect>());
  add_dialect("/v1/embeddings", std::make_unique<EmbeddingDialect>(EmbeddingForm::kOpenAi));
  for (const char* path : {"/embedding", "/embeddings"})
    add_dialect(path, std::make_unique<EmbeddingDialect>(EmbeddingForm::kLlama));
}

void Api::add_dialect(std::string path, std::unique_ptr<Dialect> dialect) {
  routes_.push_back({std::move(path), "POST", nullptr, std::move(dialect)});
}

void Api::admit(HttpRequest& request) {
  request.reply_fields = cors_.fields(request.origin);
  if (find(request.path) == &routes_.front() || cors_.is_preflight(request)) return;  // health
  check_key(request);
  if (draining_ && request.method == "POST") throw RequestError::shutting_down();
}

void Api::check_key(HttpRequest& request) const {
  if (!keys_.wanted()) return;
  const ApiKey* key = keys_.find(request.authorization);
  if (key == nullptr)
    throw RequestError(401,
                       request.authorization.empty()
                           ? "An API key is wanted: send the field 'Authorization: Bearer KEY', once."
                           : "Incorrect API key provided.",
                       "", "invalid_api_key");
  request.client = key->name;
  if (config_.isolate_keys) request.tenant_salt = tenant_salt(*key);
}

Reply Api::refuse(const RequestError& error, std::string_view path) {
  metrics_.count_rejected(rejection_of(error.status(), draining_));
  metrics_.count_request(kOtherPath, error.status());
  return error_reply(error, find(path));
}

Reply Api::error_reply(const RequestError& error, const Route* route) const {
  const bool has_dialect = route != nullptr && route->dialect;
  Reply reply{.status = error.status(), .body = (has_dialect ? route->dialect : default_dialect_)->error(error)};
  if (const auto seconds = error.retry_after_s()) reply.headers.emplace_back("Retry-After", std::to_string(*seconds));
  if (error.status() == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

void Api::reload_keys() {
  try {
    keys_.reload();
    SPDLOG_INFO("{} API keys in '{}'", keys_.size(), keys_.path());
  } catch (const std::exception& e) {
    SPDLOG_ERROR("{} The keys stay as they were.", e.what());
  }
}

const Api::Route* Api::find(std::string_view path) const {
  if (path.ends_with('/') && path != kModelPath) path.remove_suffix(1);
  const std::string_view below = std::string_view(kModelPath);
  const std::string_view known = path.starts_with(below) && path != below ? below : path;
  const auto it = std::ranges::find(routes_, known, &Route::path);
  return it == routes_.end() ? nullptr : &*it;
}

asio::awaitable<void> Api::handle(HttpRequest& request, ReplyWriter& out) {
  std::optional<RequestError> failure;
  std::unique_ptr<Answer> answer;
  const Route* const route = find(request.path);
  const char* label = kOtherPath;
  if (cors_.is_preflight(request)) co_return co_await out.send(cors_.preflight(request));
  try {
    if (route == nullptr)
      throw RequestError(404, fmt::format("There is nothing at {}.", request.path), "", "not_found");
    if (request.method != route->method)
      throw RequestError(405, fmt::format("{} wants {}, not {}.", request.path, route->method, request.method), "",
                         "method_not_allowed");
    label = route->path.c_str();
    if (request.method == "GET") request.drop_body();  // nobody looks at it
    co_await (route->dialect ? generate(*route->dialect, request, out, answer) : (this->*route->action)(request, out));
    metrics_.count_request(label, 200);
  } catch (const RequestError& e) {
    failure = e;
  } catch (const boost::system::system_error&) {
    metrics_.count_client_gone();
    throw;                           // the connection's own affair
  } catch (const std::bad_alloc&) {  // on this thread, or in the request's work on the worker
    SPDLOG_ERROR("{} {}: out of memory", request.method, request.path);
    failure = RequestError::unavailable("The server is out of memory.");
  } catch (const std::exception& e) {
    SPDLOG_ERROR("{} {}: {}", request.method, request.path, e.what());
    failure = RequestError::server_error(500, "An internal error: see the server's log.", "internal_error");
  }
  if (!failure) co_return;
  request.drop_body();  // a client that takes the answer slowly must not hold it meanwhile
  metrics_.count_request(label, failure->status());
  spdlog::debug("{} {} of {}: {} {}", request.method, request.path, request.client.empty() ? "?" : request.client,
                failure->status(), failure->what());
  if (!out.begun()) {
    Reply reply = error_reply(*failure, route);
    if (failure->status() == 405) reply.headers.emplace_back("Allow", route->method);
    co_await out.send(std::move(reply));
  } else if (out.streaming() && answer) {
    co_await out.write(answer->error(*failure));
    co_await out.end_stream();
  } else {
    throw *failure;  // in the middle of something: only closing is understood
  }
}

void Api::set_progress(std::string stage, double fraction) {
  stage_ = std::move(stage);
  fraction_ = fraction;
}

void Api::set_ready(std::shared_ptr<Model> model) {
  model_ = std::move(model);
  fingerprint_ = fingerprint(config_, model_->facts());
  hub_.on_report(
      [this](engine::RequestId id, const engine::CacheReport& report) { log_cache_report(id, report, *model_); });
}

Model& Api::ready_model() const {
  if (draining_) throw RequestError::shutting_down();
  if (!model_)
    throw RequestError::unavailable(fmt::format("The model is loading ({} {:.0f} %).", stage_, fraction_ * 100));
  return *model_;
}

asio::awaitable<void> Api::health(HttpRequest&, ReplyWriter& out) {
  Reply reply;
  if (draining_) {
    reply = {.status = 503, .body = dump({{"status", "draining"}})};
  } else if (!model_) {
    reply = {.status = 503, .body = dump({{"status", "loading"}, {"stage", stage_}, {"progress", fraction_}})};
  } else {
    reply.body = dump(JsonObject{{"status", "ok"}});
  }
  if (reply.status != 200) reply.headers.emplace_back("Retry-After", "1");
  co_await out.send(std::move(reply));
}

asio::awaitable<void> Api::models(HttpRequest& request, ReplyWriter& out) {
  const ModelFacts* facts = model_ ? &model_->facts() : nullptr;
  std::string_view path = request.path;
  if (path.ends_with('/')) path.remove_suffix(1);
  if (path.size() <= std::string_view(kModelPath).size() || !path.starts_with(kModelPath))
    co_return co_await out.send({.body = models_json(config_.names, started_, facts)});
  const std::string name = percent_decoded(path.substr(std::string_view(kModelPath).size()));
  if (!config_.names.known(name))
    throw RequestError(404, fmt::format("The model '{}' does not exist.", text::to_utf8(name)), "model",
                       "model_not_found");
  co_await out.send({.body = dump(model_json(name, config_.names.id, started_, facts))});
}

asio::awaitable<void> Api::props(HttpRequest&, ReplyWriter& out) {
  co_await out.send({.body = props_json(config_, ready_model().facts())});
}

asio::awaitable<void> Api::slots(HttpRequest&, ReplyWriter& out) {
  const Model& model = ready_model();
  co_await out.send({.body = slots_json(model.facts(), model.snapshot())});
}

asio::awaitable<void> Api::metrics(HttpRequest&, ReplyWriter& out) {
  std::optional<engine::Snapshot> snapshot;
  if (model_) snapshot = model_->snapshot();
  Reply reply{.body = metrics_.scrape(snapshot ? &*snapshot : nullptr, http_figures_())};
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  co_await out.send(std::move(reply));
}

asio::awaitable<void> Api::cache_stats(HttpRequest&, ReplyWriter& out) {
  if (!model_) ready_model();  // throws; while draining the figures are still of interest
  co_await out.send({.body = cache_stats_json(model_->snapshot(), model_->facts(), config_.names.id)});
}

template <std::string (*make_reply)(const Model&, std::string_view)>
asio::awaitable<void> Api::convert(HttpRequest& request, ReplyWriter& out) {
  const Model& model = ready_model();
  std::string body;
  co_await prepare(worker_, request.body.size(), engine::Clock::now(), [&] {
    body = make_reply(model, request.body);
    return true;
  });
  request.drop_body();
  co_await out.send({.body = std::move(body)});
}

asio::awaitable<void> Api::prepare(WorkQueue& worker, std::size_t bytes, engine::Clock::time_point asked_at,
                                   std::function<bool()> step) {
  const auto start = engine::Clock::now();
  const auto deadline = deadline_of(asked_at, config_.request_seconds, std::nullopt);
  const auto turn = [&] {
    if (draining_) throw RequestError::shutting_down();
    if (deadline && engine::Clock::now() >= *deadline) throw out_of_time_error();
    return step();
  };
  struct Measure {
    Metrics& metrics;
    engine::Clock::time_point start;
    ~Measure() { metrics.end_preparation(std::chrono::duration<double>(engine::Clock::now() - start).count()); }
  } const measure{metrics_, start};
  metrics_.begin_preparation();
  co_await worker.run(bytes, turn);
}

GenerationRequest Api::parse(const Dialect& dialect, const ModelFacts& facts, const HttpRequest& request) const {
  const int most = dialect.max_prompts();
  const JsonObject body = parse_body(request.body, json_limits(facts.context_length, std::min(most, kMaxPrompts)));
  GenerationRequest parsed = dialect.parse(body, request_limits(facts, most, config_.defaults));
  parsed.prompt_text |= config_.verbose;
  check(parsed);
  parsed.cache_salt.insert(0, request.tenant_salt);
  const ServedNames& names = config_.names;
  if (!names.known(parsed.model))
    throw RequestError(404, fmt::format("The model '{}' does not exist; this server has '{}'.", parsed.model, names.id),
                       "model", "model_not_found");
  parsed.model = names.resolve(parsed.model);
  return parsed;
}

asio::awaitable<Prepared> Api::take_in(const Dialect& dialect, HttpRequest& request,
                                       engine::Clock::time_point asked_at) {
  try {
    Model& model = ready_model();
    std::optional<Preparation> preparation;
    const std::size_t bytes = request.body.size();
    co_await prepare(worker_, bytes, asked_at, [&] {
      if (preparation) return preparation->wants_grammar() || preparation->step();
      preparation.emplace(model, parse(dialect, model.facts(), request));
      std::string().swap(request.body);
      return false;
    });
    if (preparation->wants_grammar()) {
      co_await prepare(compiling_, bytes, asked_at, [&] {
        preparation->compile_grammar();
        return true;
      });
      co_await prepare(worker_, bytes, asked_at, [&] { return preparation->step(); });
    }
    request.drop_body();
    ready_model();  // throws if it drains by now
    Prepared prepared = preparation->take();
    if (prepared.terms.cache_report && config_.cache_reports == CacheReports::kOff)
      throw RequestError::unsupported("cache_report", "switched off by this server's operator");
    check_echoes(prepared, config_.max_answer_bytes);
    co_return prepared;
  } catch (const RequestError& e) {
    const bool too_long = e.code() == "context_length_exceeded";
    metrics_.count_rejected(too_long ? Rejection::kTooLong : rejection_of(e.status(), draining_));
    throw;
  }
}

asio::awaitable<void> Api::generate(const Dialect& dialect, HttpRequest& request, ReplyWriter& out,
                                    std::unique_ptr<Answer>& answer) {
  const auto start = engine::Clock::now();
  Prepared prepared = co_await take_in(dialect, request, start);
  const GenerationTerms& asked = prepared.terms;
  Model& model = ready_model();
  // A whole answer is taken at once, whatever its client does: only a stream can have a slow reader.
  const std::size_t max_pending = asked.stream ? config_.max_pending_bytes : std::numeric_limits<std::size_t>::max();
  Job job(hub_, model, co_await asio::this_coro::executor, max_pending, asked.input_field);
  const auto deadline = deadline_of(start, config_.request_seconds, asked.timeout_seconds);
  int prompt_tokens = 0;
  for (engine::Request& r : prepared.requests) {
    r.deadline = deadline;
    r.cache_report |= spdlog::should_log(spdlog::level::debug);
    prompt_tokens += static_cast<int>(r.prompt.size());
    job.submit(std::move(r));
  }
  AnswerHead head{.id = std::string(dialect.id_prefix()) + random_name(),
                  .created = std::time(nullptr),
                  .model = asked.model,
                  .fingerprint = fingerprint_,
                  .context_length = model.facts().context_length,
                  .n_choices = job.n_choices(),
                  .n_prompts = job.n_choices() / asked.n,
                  .prompt_tokens = prompt_tokens,
                  .prompts = std::move(prepared.prompt_texts),
                  .echoes = std::move(prepared.echoes),
                  .reporting = {asked.cache_report, &model, config_.cache_reports}};
  // The log's cache reports have these numbers: the engine tells of a request that its client may have left.
  spdlog::debug("{}: requests {}", head.id, fmt::join(job.requests(), ", "));
  const int n_choices = head.n_choices;
  std::string name = head.id.substr(dialect.id_prefix().size());
  answer = dialect.begin(asked, prepared.sampling->params, std::move(head));
  if (prepared.format)
    answer = std::make_unique<ParsedAnswer>(std::move(answer), prepared.format, n_choices, std::move(name));
  prepared.sampling = nullptr;  // the samples have it as long as they need it, and slow readers may stay for long
  ReplyTerms terms{.stream = asked.stream, .start = start, .max_answer_bytes = config_.max_answer_bytes};
  if (config_.ping_seconds > 0) terms.ping = clock_duration(config_.ping_seconds);
  co_await reply_with(job, *answer, terms, metrics_, out);
}

}  // namespace coppice::server
