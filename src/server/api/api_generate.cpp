// Api's generations: from a body to the engine, and the reply.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/this_coro.hpp>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "port/turn.h"
#include "server/api/api.h"
#include "server/api/base/json_fields.h"
#include "server/api/server_info.h"
#include "server/base/random_name.h"
#include "server/http/http_limits.h"
#include "server/jobs/job.h"
#include "server/jobs/parsed_answer.h"
#include "server/jobs/reply_loop.h"
#include "vision/pictures.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

RequestError out_of_time_error() {
  return RequestError::server_error(504, "The request ran out of time before its prompt was ready.",
                                    "deadline_exceeded");
}

engine::Clock::duration clock_duration(double seconds) {
  return std::chrono::duration_cast<engine::Clock::duration>(std::chrono::duration<double>(seconds));
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

/// Puts a job's figures into its record, however it ends.
class Tally {
 public:
  /// `answer`: null until it begins. All outlive this.
  Tally(const Job& job, engine::Clock::time_point start, const std::unique_ptr<Answer>& answer, RequestRecord& record)
      : job_(job), start_(start), answer_(answer), record_(record) {}
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;
  ~Tally() {
    if (job_.first_token())
      record_.first_token_seconds = std::chrono::duration<double>(*job_.first_token() - start_).count();
    record_.queue_seconds = job_.queue_seconds();
    if (!job_.done() || job_.error()) return;
    record_.cached_tokens = job_.usage().cached_tokens;
    record_.completion_tokens = job_.usage().completion_tokens;
    if (!job_.finish()) return;
    record_.end = end(*job_.finish());
  }

 private:
  const char* end(sampling::Finish finish) const {
    if (finish != sampling::Finish::kStop) return finish == sampling::Finish::kTimeout ? "timeout" : "length";
    return answer_ && answer_->calls() ? "tool_calls" : "stop";
  }

  const Job& job_;
  engine::Clock::time_point start_;
  const std::unique_ptr<Answer>& answer_;
  RequestRecord& record_;
};

}  // namespace

Api::Deadline Api::deadline_of(engine::Clock::time_point asked_at, std::optional<double> timeout_seconds) const {
  double seconds = config_.request_seconds > 0 ? config_.request_seconds : std::numeric_limits<double>::infinity();
  if (timeout_seconds) seconds = std::min(seconds, *timeout_seconds);
  if (std::isinf(seconds)) return std::nullopt;
  return asked_at + clock_duration(seconds);
}

asio::awaitable<void> Api::prepare(WorkQueue& worker, const std::string& key, std::size_t bytes,
                                   const Deadline& deadline, std::function<bool()> step) {
  const auto start = engine::Clock::now();
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
  co_await worker.run(key, bytes, turn);
}

GenerationRequest Api::parse(const Dialect& dialect, const ModelFacts& facts, const HttpRequest& request) const {
  const int most = dialect.max_prompts();
  JsonObject body = parse_body(request.body, json_limits(facts.context_length, std::min(most, kMaxPrompts)));
  if (request.salt) body["cache_salt"] = *request.salt;
  RequestLimits limits = request_limits(facts, most, config_.defaults);
  limits.tenant = request.tenant;
  GenerationRequest parsed = dialect.parse(body, limits);
  parsed.prompt_text |= config_.verbose;
  check(parsed);
  engine::PrefixOwner owner = prefix_owner(request, std::move(parsed.cache_salt));
  parsed.cache_salt = std::move(owner.ns.salt);
  parsed.pin_payer = std::move(owner.payer);
  const ServedNames& names = config_.names;
  if (!names.known(parsed.model)) throw unknown_model(parsed.model, names);
  parsed.model = names.resolve(parsed.model);
  return parsed;
}

asio::awaitable<std::vector<vision::FetchedFiles::File>> Api::fetch(HttpRequest& request, MissingPictures missing,
                                                                    Deadline deadline) {
  if (!fetching_) {
    throw RequestError::unsupported(missing.files.front()->field,
                                    "this server fetches nothing, as it is served without --allow-media-from: send the "
                                    "image itself, as \"data:image/png;base64,...\"");
  }
  std::vector<std::string> urls;
  for (const auto& file : missing.files) urls.push_back(file->url);
  std::ranges::sort(urls);
  urls.erase(std::ranges::unique(urls).begin(), urls.end());
  std::vector<Fetcher::File> files;
  co_await prepare(*fetching_, request.tenant, 0, deadline, [&] {
    files = fetcher_.fetch(urls, port::unwanted);
    return true;
  });
  std::vector<vision::FetchedFiles::File> held;
  std::size_t bytes = request.body_charge.bytes();
  for (std::size_t i = 0; i < urls.size(); ++i) {
    if (!files[i]) {
      const auto wanted = std::ranges::find(missing.files, urls[i], [](const auto& file) { return file->url; });
      throw RequestError(400, fmt::format("'{}': the image {}", (*wanted)->field, files[i].error()), (*wanted)->field,
                         "invalid_image_url");
    }
    bytes += files[i]->size();
    if (!request.body_charge.raise(bytes))
      throw RequestError::unavailable("The bodies of other requests take all the room there is.");
    held.push_back(ready_model().pictures()->fetched().hold(missing.owner, urls[i], *std::move(files[i])));
  }
  co_return held;
}

asio::awaitable<std::unique_ptr<Preparation>> Api::take_in(const Dialect& dialect, HttpRequest& request,
                                                           engine::Clock::time_point asked_at) {
  try {
    Model& model = ready_model();
    std::unique_ptr<Preparation> preparation;
    const std::size_t bytes = request.body.size();
    std::vector<PromptPictures::File> missing;
    std::vector<vision::FetchedFiles::File> held;
    Deadline deadline = deadline_of(asked_at, std::nullopt);
    co_await prepare(worker_, request.tenant, bytes, deadline, [&] {
      if (preparation) return preparation->wants_grammar() || preparation->wants_looks() || preparation->step();
      GenerationRequest parsed = parse(dialect, model.facts(), request);
      deadline = deadline_of(asked_at, parsed.timeout_seconds);
      preparation = std::make_unique<Preparation>(model, std::move(parsed));
      missing = preparation->missing_pictures();
      std::string().swap(request.body);
      return false;
    });
    const bool fetches = !missing.empty(), waits = preparation->wants_looks() || preparation->wants_grammar();
    if (fetches)
      held = co_await fetch(request, MissingPictures(preparation->pictures_owner(), std::move(missing)), deadline);
    if (fetches && !preparation->missing_pictures().empty())
      throw RequestError::server_error(500, "An image that was fetched is gone.", "internal_error");
    if (preparation->wants_looks())
      co_await prepare(*decoder_, request.tenant, 0, deadline, [&] { return preparation->look(); });
    if (preparation->wants_grammar()) {
      for (const bool quickly : {true, false}) {
        if (!preparation->wants_grammar()) break;
        // Of one size: few of a key's are begun at once, each of which takes memory.
        co_await prepare(quickly ? compilers_.quick : compilers_.slow, request.tenant, 0, deadline, [&] {
          preparation->compile_grammar(quickly);
          return true;
        });
      }
    }
    if (waits) co_await prepare(worker_, request.tenant, bytes, deadline, [&] { return preparation->step(); });
    ready_model();  // throws if it drains by now
    co_return preparation;
  } catch (const RequestError& e) {
    counted(e);
    throw;
  }
}

RequestError Api::counted(RequestError error) {
  const bool too_long = error.code() == "context_length_exceeded";
  metrics_.count_rejected(too_long ? Rejection::kTooLong : rejection_of(error.status(), draining_));
  return error;
}

asio::awaitable<void> Api::encode(Preparation& preparation, const HttpRequest& request, Deadline deadline,
                                  RequestRecord& record) {
  const auto begin = engine::Clock::now();
  const auto wanted = [&] {
    if (draining_ || (deadline && engine::Clock::now() >= *deadline)) return vision::Wanted::kByNobody;
    return port::unwanted() ? vision::Wanted::kByOthers : vision::Wanted::kByCaller;
  };
  try {
    co_await prepare(*encoder_, request.tenant, request.body_charge.bytes(), deadline,
                     [&] { return preparation.encode(wanted); });
    ready_model();  // throws if it drains by now
  } catch (const RequestError& e) {
    counted(e);
    throw;
  }
  record.image_seconds = std::chrono::duration<double>(engine::Clock::now() - begin).count();
}

std::unique_ptr<Answer> Api::begin_answer(const Dialect& dialect, Prepared& prepared, std::string name) const {
  const GenerationTerms& asked = prepared.terms;
  const int n_prompts = static_cast<int>(prepared.requests.size());
  AnswerHead head{.id = std::string(dialect.id_prefix()) + name,
                  .created = std::time(nullptr),
                  .model = asked.model,
                  .fingerprint = fingerprint_,
                  .context_length = model_->facts().context_length,
                  .n_choices = n_prompts * asked.n,
                  .n_prompts = n_prompts,
                  .prompt_tokens = static_cast<int>(prepared.prompt_tokens),
                  .prompts = std::move(prepared.prompt_texts),
                  .echoes = std::move(prepared.echoes),
                  .reporting = {asked.cache_report, model_.get(), config_.cache_reports, std::move(prepared.pictures)}};
  std::unique_ptr<Answer> answer = dialect.begin(asked, prepared.sampling->params, std::move(head));
  prepared.terms.own = nullptr;  // the answer has of it what it needs, as long as it needs it
  if (prepared.format)
    answer = std::make_unique<ParsedAnswer>(
        std::move(answer), prepared.format, n_prompts * asked.n,
        ParsedAnswer::Ids{.form = prepared.call_ids, .before = prepared.calls_before, .name = std::move(name)},
        prepared.sampling->params.grammar.grammar != nullptr);
  prepared.sampling = nullptr;  // the samples have it as long as they need it, and slow readers may stay for long
  return answer;
}

asio::awaitable<void> Api::generate(const Dialect& dialect, HttpRequest& request, ReplyWriter& out,
                                    std::unique_ptr<Answer>& answer, RequestRecord& record) {
  const auto start = engine::Clock::now();
  std::unique_ptr<Preparation> preparation = co_await take_in(dialect, request, start);
  Prepared prepared = preparation->take();
  const GenerationTerms& asked = prepared.terms;
  try {
    if (asked.cache_report && config_.cache_reports == CacheReports::kOff)
      throw RequestError::unsupported("cache_report", "switched off by this server's operator");
    check_echoes(prepared, config_.max_answer_bytes);
  } catch (const RequestError& e) {
    counted(e);
    throw;
  }
  record.model = asked.model;
  record.prompt_tokens = static_cast<int>(prepared.prompt_tokens);
  const auto deadline = deadline_of(start, asked.timeout_seconds);
  ReplyTerms terms{
      .stream = asked.stream, .request_id = request.id, .start = start, .max_answer_bytes = config_.max_answer_bytes};
  if (config_.ping_seconds > 0) terms.ping = clock_duration(config_.ping_seconds);
  terms.silent_for = [this] { return model_->snapshot().asleep ? "reading the weights again" : ""; };
  const std::string name = random_name();
  answer = begin_answer(dialect, prepared, name);
  if (preparation->wants_rows() &&
      !co_await keep_alive(encode(*preparation, request, deadline, record), deadline, terms, out))
    throw counted(out_of_time_error());
  request.drop_body();  // not before: files of pictures are kept until they are encoded
  preparation->add_rows(prepared.requests);
  preparation = nullptr;
  // A whole answer is taken at once, whatever its client does: only a stream can have a slow reader.
  const std::size_t max_pending = asked.stream ? config_.max_pending_bytes : std::numeric_limits<std::size_t>::max();
  Job job(hub_, ready_model(), co_await asio::this_coro::executor, max_pending, asked.input_field);
  for (engine::Request& r : prepared.requests) {
    r.deadline = deadline;
    r.cache_report |= spdlog::should_log(spdlog::level::debug);
    job.submit(std::move(r));
  }
  // The log's cache reports have these numbers: the engine tells of a request that its client may have left.
  spdlog::debug("{}{}: requests {}", dialect.id_prefix(), name, fmt::join(job.requests(), ", "));
  const Tally tally(job, start, answer, record);
  co_await reply_with(job, *answer, terms, metrics_, out);
}

}  // namespace coppice::server
