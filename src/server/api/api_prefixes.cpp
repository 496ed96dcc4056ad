// Api's routes to pinned prefixes, and to what the operator may do with the cache. (POST /v1/cache/prefixes is a
// PrefixDialect.)
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/this_coro.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "server/api/api.h"
#include "server/api/base/json.h"
#include "server/api/cache/prefix_json.h"
#include "server/http/http_head.h"
#include "server/jobs/ask.h"

namespace coppice::server {

namespace asio = boost::asio;

namespace {

/// Of a reset; none: all.
std::optional<engine::CacheTier> tier_of(std::string_view query) {
  const auto name = query_value(query, "tier");
  if (!name) return std::nullopt;
  if (*name == "pool") return engine::CacheTier::kPool;
  if (*name == "host") return engine::CacheTier::kHost;
  if (*name == "disk") return engine::CacheTier::kDisk;
  if (*name == "redis") return engine::CacheTier::kRedis;
  throw RequestError::bad_field("tier", "must be pool, host, disk or redis");
}

RequestError no_such_prefix(const std::string& id) {
  return {404, fmt::format("There is no pinned prefix '{}' of this key and cache_salt.", id), "id", "prefix_not_found"};
}

}  // namespace

asio::awaitable<engine::PrefixAnswer> Api::ask_engine(engine::PrefixCommand command) {
  Ask<engine::PrefixAnswer> ask(hub_.io());
  if (!ready_model().ask(std::move(command), ask.reply()))
    throw RequestError::queue_full("Too many requests about the cache wait for the engine.");
  const auto answer = co_await ask.answer();
  if (!answer) throw no_answer();
  co_return *answer;
}

engine::PrefixOwner Api::prefix_owner(const HttpRequest& request, std::string cache_salt) const {
  if (config_.isolate_keys) cache_salt.insert(0, request.tenant);
  return {.payer = request.tenant,
          .ns = {.salt = std::move(cache_salt)}};  // without keys all pay together: a salt is soon made
}

engine::PrefixOwner Api::named_owner(const HttpRequest& request) const {
  return prefix_owner(request, salt_of(request));
}

asio::awaitable<void> Api::list_prefixes(HttpRequest& request, ReplyWriter& out) {
  const auto place = feed_.enter(request.tenant);
  const auto answer = co_await ask_engine({.kind = engine::PrefixCommand::Kind::kList, .owner = named_owner(request)});
  co_await send_made([&] { return prefix_list_json(answer); }, out);
}

asio::awaitable<void> Api::get_prefix(HttpRequest& request, ReplyWriter& out) {
  const auto place = feed_.enter(request.tenant);
  const std::string id = path_segment(request.path, 3);
  const auto answer =
      co_await ask_engine({.kind = engine::PrefixCommand::Kind::kList, .owner = named_owner(request), .prefix = id});
  if (answer.prefixes.empty()) throw no_such_prefix(id);
  co_await out.send({.body = dump(prefix_json(answer.prefixes.front()))});
}

asio::awaitable<void> Api::delete_prefix(HttpRequest& request, ReplyWriter& out) {
  const auto place = feed_.enter(request.tenant);
  const std::string id = path_segment(request.path, 3);
  const auto answer =
      co_await ask_engine({.kind = engine::PrefixCommand::Kind::kEnd, .owner = named_owner(request), .prefix = id});
  if (answer.prefixes.empty()) throw no_such_prefix(id);
  co_await out.send({.body = dump(JsonObject{{"id", id}, {"object", "cache.prefix.deleted"}, {"deleted", true}})});
}

asio::awaitable<void> Api::reset_cache(HttpRequest& request, ReplyWriter& out) {
  const bool anybody = !keys_.wanted() && !operator_keys_.wanted();
  if (!anybody && operator_keys_.find(request.authorization) == nullptr)
    throw RequestError(403, "Only an operator's key may do that.", "", "operator_only");
  const auto tier = tier_of(request.query);
  const auto answer = co_await ask_engine({.kind = engine::PrefixCommand::Kind::kReset, .tier = tier});
  const std::string name = query_value(request.query, "tier").value_or("");
  if (answer.absent)
    throw RequestError(404, fmt::format("This server keeps no blocks there: {}.", name), "tier", "tier_not_found");
  if (!tier && ready_model().pictures() != nullptr) ready_model().pictures()->forget();
  SPDLOG_INFO("{} reset the cache{}: {} prefixes and {} blocks of the pool went",
              request.client.empty() ? "Somebody" : request.client, tier ? fmt::format(" ({} only)", name) : "",
              answer.ended, answer.blocks);
  co_await out.send({.body = cache_reset_json(answer)});
}

}  // namespace coppice::server
