#include "server/api.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/system/system_error.hpp>
#include <charconv>
#include <cmath>
#include <ctime>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "server/api_error.h"
#include "server/cache_stats.h"
#include "server/generation_reply.h"
#include "server/insist.h"
#include "server/job.h"
#include "server/log_failure.h"
#include "server/openai_response.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr const char* kHealthPath = "/health";
constexpr const char* kModelPath = "/v1/models/";
constexpr const char* kOtherPath = "other";  // unknown paths must not become label values

JsonObject model_json(const std::string& id, const std::string& root, std::int64_t created, const Model* model) {
  JsonObject json = {{"id", id}, {"object", "model"}, {"created", created}, {"owned_by", "coppice"}, {"root", root}};
  if (model != nullptr) json["max_model_len"] = model->facts().context_length;
  return json;
}

/// RFC 3986, 2.1. What isn't encoded rightly stays as it is.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::uint8_t byte = 0;
    const char* digits = text.data() + i + 1;
    const bool encoded =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    out += encoded ? static_cast<char>(byte) : text[i];
    if (encoded) i += 2;
  }
  return out;
}

ApiError draining_error() {
  return ApiError::shutting_down();
}

ApiError out_of_time_error() {
  return ApiError::server_error(504, "The request ran out of time before it was read.", "deadline_exceeded");
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

}  // namespace

/// The caller's frame stays until the last step is done, cancelled or not, so what is referred to is there. No co_spawn: Boost
/// 1.81's hands a cancellation over to another thread by a pointer into what may be gone when it gets there.
asio::awaitable<void> Api::on_worker(std::size_t bytes, std::function<bool()> step) {
  const auto start = engine::Clock::now();
  const auto deadline = deadline_of(start, config_.request_seconds, std::nullopt);
  std::exception_ptr failure;
  std::atomic<bool> cancelled = false;
  // What resumes the caller lies in its frame, and the queue takes no memory: an initiation that throws, for want of it, would
  // end the coroutine without a word to anybody.
  using Resume = asio::async_result<asio::use_awaitable_t<>, void()>::handler_type;
  std::optional<Resume> resume;
  const auto io = asio::make_work_guard(co_await asio::this_coro::executor);
  WorkQueue::Work work(bytes, [&] {
    bool done = true;
    try {
      if (draining_) throw draining_error();
      if (cancelled) throw boost::system::system_error(asio::error::operation_aborted);
      if (deadline && engine::Clock::now() >= *deadline) throw out_of_time_error();
      done = step();
    } catch (...) {
      failure = std::current_exception();
    }
    if (!done) return false;
    insist([&] {
      asio::post(io.get_executor(), [&resume] {
        Resume caller = std::move(*resume);
        std::move(caller)();
      });
    });
    return true;
  });
  const auto begin = [&](Resume handler) {
    // The slot is cleared before the caller goes on: nothing refers to what is gone.
    if (auto slot = asio::get_associated_cancellation_slot(handler); slot.is_connected())
      slot.assign([&cancelled](asio::cancellation_type) { cancelled = true; });
    resume.emplace(std::move(handler));
    worker_.push(work);
  };
  metrics_.begin_preparation();
  co_await asio::async_initiate<const asio::use_awaitable_t<>, void()>(begin, asio::use_awaitable);
  metrics_.end_preparation(std::chrono::duration<double>(engine::Clock::now() - start).count());
  if (failure) std::rethrow_exception(failure);
}

Api::Api(ApiConfig config, EventHub& hub, WorkQueue& worker)
    : config_(std::move(config)),
      keys_(config_.api_keys_file),
      hub_(hub),
      worker_(worker),
      started_(std::time(nullptr)) {}

void Api::admit(HttpRequest& request) {
  if (request.path == kHealthPath) return;
  check_key(request);
  if (draining_ && request.method == "POST") throw draining_error();
}

void Api::check_key(HttpRequest& request) const {
  if (!keys_.wanted()) return;
  const ApiKey* key = keys_.find(request.authorization);
  if (key == nullptr)
    throw ApiError(401,
                   request.authorization.empty()
                       ? "An API key is wanted: send the field 'Authorization: Bearer KEY', once."
                       : "Incorrect API key provided.",
                   "", "invalid_api_key");
  request.client = key->name;
  if (config_.isolate_keys) request.tenant_salt = tenant_salt(*key);
}

void Api::refused(int status) noexcept {
  try {
    metrics_.count_rejected(rejection_of(status, draining_));
  } catch (const std::exception& e) {
    log_failure("counting a refused request", e);
  }
  count(kOtherPath, status);
}

void Api::count(const char* path, int status) noexcept {
  try {
    metrics_.count_request(path, status);
  } catch (const std::exception& e) {
    log_failure("counting a request", e);
  }
}

void Api::reload_keys() {
  try {
    keys_.reload();
    SPDLOG_INFO("{} API keys in '{}'", keys_.size(), keys_.path());
  } catch (const std::exception& e) {
    SPDLOG_ERROR("{} The keys stay as they were.", e.what());
  }
}

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> kRoutes = {
      {kHealthPath, "GET", &Api::health},
      {"/metrics", "GET", &Api::metrics},
      {"/v1/models", "GET", &Api::models},
      {"/v1/cache/stats", "GET", &Api::cache_stats},
      {"/v1/chat/completions", "POST", &Api::chat},
      {"/v1/completions", "POST", &Api::completions},
      {"/tokenize", "POST", &Api::tokenize},
      {"/detokenize", "POST", &Api::detokenize},
      {kModelPath, "GET", &Api::models},  // and all below it
  };
  return kRoutes;
}

const Api::Route& Api::find(const HttpRequest& request) const {
  const bool one_model = request.path.starts_with(kModelPath);
  for (const Route& route : routes()) {
    if (one_model ? route.path != kModelPath : request.path != route.path) continue;
    return route;
  }
  throw ApiError(404, fmt::format("There is nothing at {}.", request.path), "", "not_found");
}

asio::awaitable<void> Api::handle(HttpRequest& request, ReplyWriter& out) {
  std::optional<ApiError> failure;
  const char* path = kOtherPath;
  const char* allowed = "";
  try {
    const Route& route = find(request);
    if (request.method != route.method) {
      allowed = route.method;
      throw ApiError(405, fmt::format("{} wants {}, not {}.", request.path, route.method, request.method), "",
                     "method_not_allowed");
    }
    path = route.path;
    if (request.method == "GET") request.drop_body();  // nobody looks at it
    co_await (this->*route.action)(request, out);
    count(path, 200);
  } catch (const ApiError& e) {
    failure = e;
  } catch (const boost::system::system_error&) {
    metrics_.count_client_gone();
    throw;  // the connection's own affair
  } catch (const std::bad_alloc& e) {
    log_failure(path, e);
    failure = ApiError::unavailable("The server is out of memory.");
  } catch (const std::exception& e) {
    SPDLOG_ERROR("{} {}: {}", request.method, request.path, e.what());
    failure = ApiError::server_error(500, "An internal error: see the server's log.", "internal_error");
  }
  if (!failure) co_return;
  request.drop_body();  // whoever takes the answer slowly must not hold it meanwhile
  count(path, failure->status());
  spdlog::debug("{} {} of {}: {} {}", request.method, request.path, request.client.empty() ? "?" : request.client,
                failure->status(), failure->what());
  if (!out.begun()) {
    HttpReply reply = error_reply(*failure);
    if (failure->status() == 405) reply.headers.emplace_back("Allow", allowed);
    co_await out.send(std::move(reply));
  } else if (out.streaming()) {
    co_await out.write(ResponseStream::error(*failure));
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
  hub_.on_report(
      [this](engine::RequestId id, const engine::CacheReport& report) { log_cache_report(id, report, *model_); });
}

Model& Api::ready_model() const {
  if (draining_) throw draining_error();
  if (!model_) throw ApiError::unavailable(fmt::format("The model is loading ({} {:.0f} %).", stage_, fraction_ * 100));
  return *model_;
}

asio::awaitable<void> Api::health(HttpRequest&, ReplyWriter& out) {
  HttpReply reply;
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
  const auto& [id, alias] = config_.names;
  if (request.path.starts_with(kModelPath)) {
    const std::string name = percent_decoded(request.path.substr(std::string_view(kModelPath).size()));
    if (name.empty() || !config_.names.known(name))
      throw ApiError(404, fmt::format("The model '{}' does not exist.", text::to_utf8(name)), "model",
                     "model_not_found");
    co_await out.send({.body = dump(model_json(name, id, started_, model_.get()))});
    co_return;
  }
  JsonArray data = {model_json(id, id, started_, model_.get())};
  if (!alias.empty() && alias != id) data.push_back(model_json(alias, id, started_, model_.get()));
  co_await out.send({.body = dump(JsonObject{{"object", "list"}, {"data", std::move(data)}})});
}

asio::awaitable<void> Api::metrics(HttpRequest&, ReplyWriter& out) {
  std::optional<engine::Snapshot> snapshot;
  if (model_) snapshot = model_->snapshot();
  HttpReply reply{.body = metrics_.scrape(snapshot ? &*snapshot : nullptr, http_figures_())};
  reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
  co_await out.send(std::move(reply));
}

asio::awaitable<void> Api::cache_stats(HttpRequest&, ReplyWriter& out) {
  if (!model_) ready_model();  // throws; while draining the figures are still of interest
  co_await out.send({.body = cache_stats_json(model_->snapshot(), model_->facts(), config_.names.id)});
}

asio::awaitable<void> Api::tokenize(HttpRequest& request, ReplyWriter& out) {
  const Model& model = ready_model();
  std::string body;
  co_await on_worker(request.body.size(), [&] {
    body = tokenize_reply(model, request.body);
    return true;
  });
  request.drop_body();
  co_await out.send({.body = std::move(body)});
}

asio::awaitable<void> Api::detokenize(HttpRequest& request, ReplyWriter& out) {
  const Model& model = ready_model();
  std::string body;
  co_await on_worker(request.body.size(), [&] {
    body = detokenize_reply(model, request.body);
    return true;
  });
  request.drop_body();
  co_await out.send({.body = std::move(body)});
}

asio::awaitable<void> Api::chat(HttpRequest& request, ReplyWriter& out) {
  return generate(Endpoint::kChat, request, out);
}

asio::awaitable<void> Api::completions(HttpRequest& request, ReplyWriter& out) {
  return generate(Endpoint::kCompletions, request, out);
}

asio::awaitable<Prepared> Api::take_in(Endpoint endpoint, HttpRequest& request) {
  try {
    const std::size_t bytes = request.body.size();
    Preparation preparation(ready_model(), config_.names, endpoint, std::move(request.body), request.tenant_salt);
    co_await on_worker(bytes, [&] { return preparation.step(); });
    Prepared prepared = preparation.take();
    request.drop_body();
    ready_model();  // throws if it drains by now
    if (prepared.parsed.cache_report && config_.cache_reports == CacheReports::kOff)
      throw ApiError::unsupported("cache_report", "switched off by this server's operator");
    co_return prepared;
  } catch (const ApiError& e) {
    const bool too_long = e.code() == "context_length_exceeded";
    metrics_.count_rejected(too_long ? Rejection::kTooLong : rejection_of(e.status(), draining_));
    throw;
  }
}

asio::awaitable<void> Api::generate(Endpoint endpoint, HttpRequest& request, ReplyWriter& out) {
  const auto start = engine::Clock::now();
  Prepared prepared = co_await take_in(endpoint, request);
  Model& model = ready_model();
  // A whole answer is taken at once, whatever its client does: only a stream can have a slow reader.
  const std::size_t max_pending =
      prepared.parsed.stream ? config_.max_pending_bytes : std::numeric_limits<std::size_t>::max();
  const char* prompt_field = endpoint == Endpoint::kChat ? "messages" : "prompt";
  Job job(hub_, model, co_await asio::this_coro::executor, max_pending, prompt_field);
  const auto deadline = deadline_of(start, config_.request_seconds, prepared.parsed.timeout_seconds);
  for (engine::Request& r : prepared.requests) {
    r.deadline = deadline;
    r.cache_report |= spdlog::should_log(spdlog::level::debug);
    job.submit(std::move(r));
  }
  ReplyClock clock{start, metrics_};
  if (config_.ping_seconds > 0) clock.ping = clock_duration(config_.ping_seconds);
  co_await reply_with(job, prepared, {model, config_.cache_reports}, clock, config_.max_answer_bytes, out);
}

}  // namespace coppice::server
