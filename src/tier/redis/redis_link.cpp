#include "tier/redis/redis_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace coppice::tier {

namespace {

/// What a command may be answered with while all is well: it has no room, or doesn't know the command.
bool is_about_command(std::string_view error) {
  return error.starts_with("OOM") || error.starts_with("ERR unknown command");
}

constexpr const char* kIsCluster = "is a cluster: blocks are kept on single servers only";

/// What a cluster says of a key that another of its servers has, or none yet.
bool is_of_cluster(const Reply& reply) {
  return reply.is_error() && (reply.text.starts_with("MOVED") || reply.text.starts_with("CLUSTERDOWN"));
}

}  // namespace

bool RedisHealth::allows() const {
  const check::Lock lock(mutex_);
  return breaker_.allows(Breaker::Clock::now());
}

void RedisHealth::fail(const std::string& why) {
  const check::Lock lock(mutex_);
  ++report_.errors;
  report_.on = false;
  report_.why = why;
  if (!breaker_.fail(Breaker::Clock::now())) return;
  ++report_.switch_offs;
  say_(fmt::format("{} {}. It is tried again by and by", name_, why));
}

void RedisHealth::succeed() {
  const check::Lock lock(mutex_);
  if (report_.on || !breaker_.allows(Breaker::Clock::now())) return;  // another link has just failed
  breaker_.succeed();
  report_.on = true;
  report_.why.clear();
  say_(name_ + " keeps and gives KV blocks");
}

RedisHealth::Report RedisHealth::report() const {
  const check::Lock lock(mutex_);
  return report_;
}

bool RedisLink::failed(const std::string& why) {
  replies_.reset();
  wire_.reset();
  health_.fail(why);
  return false;
}

bool RedisLink::ensure() {
  if (!health_.allows()) return false;
  if (wire_ != nullptr) return true;
  auto wire = connect(address_);
  if (!wire) return failed(wire.error());
  wire_ = std::move(*wire);
  const auto greeted = greet(replies_.emplace(*wire_));
  if (!greeted) return failed(greeted.error());
  health_.succeed();
  return true;
}

WireResult<void> RedisLink::greet(ReplyReader& replies) {
  std::string hello;
  int n_first = 0;
  if (!address_.password.empty()) {
    address_.user.empty() ? add_command(hello, {"AUTH", address_.password})
                          : add_command(hello, {"AUTH", address_.user, address_.password});
    ++n_first;
  }
  if (address_.db != 0) {
    add_command(hello, {"SELECT", std::to_string(address_.db)});
    ++n_first;
  }
  add_command(hello, {"PING"});
  add_command(hello, {"GETEX", "coppice:", "EX", "1"});  // Redis before 6.2 lacks it
  add_command(hello, {"INFO", "cluster"});
  if (const auto sent = wire_->send(std::as_bytes(std::span(hello))); !sent) return sent;
  for (int i = 0; i < n_first + 2; ++i) {
    const auto reply = replies.next();
    if (!reply) return std::unexpected(reply.error());
    if (is_of_cluster(*reply)) return std::unexpected(kIsCluster);
    if (reply->is_error()) return std::unexpected("refuses: " + reply->text);
  }
  const auto info = replies.next();  // who may not ask that is not told
  if (!info) return std::unexpected(info.error());
  if (info->kind != Reply::Kind::kValue) return {};
  const auto text = replies.short_value(info->number);
  if (!text) return std::unexpected(text.error());
  if (text->contains("cluster_enabled:1")) return std::unexpected(kIsCluster);
  return {};
}

bool RedisLink::send(std::span<const std::byte> bytes) {
  const auto sent = wire_->send(bytes);
  return sent || failed(sent.error());
}

std::optional<Reply> RedisLink::next() {
  auto reply = replies_->next();
  if (!reply || (reply->is_error() && !is_about_command(reply->text))) {
    failed(reply ? "refuses: " + reply->text : reply.error());
    return std::nullopt;
  }
  return std::move(*reply);
}

bool RedisLink::value(std::span<std::byte> into) {
  const auto got = replies_->value(into);
  return got || failed(got.error());
}

bool RedisLink::skip_value(std::int64_t bytes) {
  const auto got = replies_->skip_value(bytes);
  return got || failed(got.error());
}

std::optional<std::string> RedisLink::short_value(const Reply& reply) {
  if (reply.kind != Reply::Kind::kValue) {
    failed("doesn't speak Redis's protocol");
    return std::nullopt;
  }
  auto got = replies_->short_value(reply.number);
  if (got) return std::move(*got);
  failed(got.error());
  return std::nullopt;
}

}  // namespace coppice::tier
