// The routes of those who look into the cache.
#include <fmt/format.h>

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "server/api/api.h"
#include "server/api/base/json.h"
#include "server/api/cache/cache_view_json.h"
#include "server/api/page_files.h"
#include "server/http/http_head.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

constexpr kv::PictureLimits kPage{.nodes = 600, .depth = 200, .head_tokens = 14};
constexpr int kMostNodes = 4096, kMostDepth = 1024, kMostText = 512;
constexpr int kMostTexts = 1 << 16;  ///< tokens of all nodes' texts together
constexpr std::chrono::seconds kPing{10};

int number_field(std::string_view query, const char* name, int otherwise, int least, int most) {
  const auto text = query_value(query, name);
  if (!text) return otherwise;
  int value = 0;
  const char* end = text->data() + text->size();
  if (std::from_chars(text->data(), end, value).ptr != end || text->empty() || value < least || value > most)
    throw RequestError::bad_field(name, fmt::format("must be a whole number from {} to {}", least, most));
  return value;
}

/// isolate: keys see their own prefixes only.
engine::Question question_of(const HttpRequest& request, bool isolate, const kv::PictureLimits& otherwise) {
  const std::string salt = salt_of(request);
  if (salt.size() > kMaxSaltBytes)
    throw RequestError::bad_field("cache_salt", fmt::format("must be at most {} bytes", kMaxSaltBytes));
  const kv::PictureLimits limits{
      .nodes = number_field(request.query, "nodes", otherwise.nodes, 1, kMostNodes),
      .depth = number_field(request.query, "depth", otherwise.depth, 1, kMostDepth),
      .head_tokens = number_field(request.query, "text", otherwise.head_tokens, 0, kMostText)};
  if (limits.nodes * limits.head_tokens > kMostTexts)
    throw RequestError::bad_field("text", fmt::format("times 'nodes' must be at most {}", kMostTexts));
  return {.ns = {.salt = (isolate ? request.tenant : "") + salt}, .limits = limits};
}

}  // namespace

asio::awaitable<void> Api::cache_tree(HttpRequest& request, ReplyWriter& out) {
  Model& model = ready_model();
  engine::Question question = question_of(request, config_.isolate_keys, kv::PictureLimits{});
  const auto place = feed_.enter(request.tenant);
  const auto view = co_await feed_.ask(model, std::move(question), request.tenant);
  if (!view) throw no_answer();
  co_await send_made([&] { return tree_json(*view, model, config_.cache_reports); }, out);
}

asio::awaitable<void> Api::cache_events(HttpRequest& request, ReplyWriter& out) {
  engine::Question question = question_of(request, config_.isolate_keys, kPage);
  const auto place = feed_.enter(request.tenant);
  const auto frame = feed_.frame(std::move(question), request.tenant);
  const auto make = [this](const engine::View& view, const engine::Snapshot& figures) {
    return fmt::format("data: {}\n\n", frame_json(view, figures, *model_, config_));
  };
  asio::steady_timer tick(co_await asio::this_coro::executor);
  std::int64_t sent = 0;  // the frame's version
  std::string loading;
  int generation = key_generation_;
  auto last = engine::Clock::now(), next = last;
  co_await out.begin_stream();
  while (!draining_) {
    const auto now = engine::Clock::now();
    if (!model_) {
      const std::string text = fmt::format(
          "data: {}\n\n",
          dump(JsonObject{{"loading", JsonObject{{"stage", loading_.stage()}, {"progress", loading_.fraction()}}}}));
      if (text != loading || now - last > kPing) co_await out.write(loading = text), last = now;
    } else {
      if (now >= next) co_await feed_.refresh(frame, *model_, make);
      if (std::exchange(generation, key_generation_) != key_generation_ && !keys_.has_tenant(request.tenant) &&
          !operator_keys_.has_tenant(request.tenant))
        break;
      if (now >= next && frame->version != sent) {
        sent = frame->version;
        const std::shared_ptr<const std::string> text = frame->text;
        co_await out.write(*text);
        last = now;
        next = engine::Clock::now() + feed_.pause(text->size()) - CacheFeed::kTick;
      } else if (now - last > kPing) {
        co_await out.write(": keep-alive\n");
        last = now;
      }
    }
    tick.expires_after(CacheFeed::kTick);
    boost::system::error_code ignored;
    co_await tick.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  co_await out.end_stream();
}

asio::awaitable<void> Api::page(HttpRequest& request, ReplyWriter& out) {
  const PageFile& file = *find_page_file(routes_.find(request.path)->path);  // which a slash may follow
  Reply reply{.body = std::string(file.bytes), .content_type = std::string(file.type), .headers = {}};
  reply.headers.emplace_back("Cache-Control", "no-cache");
  reply.headers.emplace_back("Content-Security-Policy", kPagePolicy);
  reply.headers.emplace_back("Referrer-Policy", "no-referrer");
  co_await out.send(std::move(reply));
}

}  // namespace coppice::server
