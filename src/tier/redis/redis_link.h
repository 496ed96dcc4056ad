// RedisLink: one thread's connection to a server, made when it is needed, and made anew after an error. RedisHealth:
// what all links of a store know of the server: whether it may be asked now.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "check/mutex.h"
#include "port/move_only_function.h"
#include "tier/breaker.h"
#include "tier/redis/resp.h"

namespace coppice::tier {

/// Thread-safe.
class RedisHealth {
 public:
  using Say = port::MoveOnlyFunction<void(const std::string& line)>;
  /// `name`: the server, in the log's lines.
  RedisHealth(std::string name, Say say) : name_(std::move(name)), say_(std::move(say)) {}

  bool allows() const;
  void fail(const std::string& why);
  void succeed();

  struct Report {
    bool on = false;
    std::string why;  ///< it is off
    std::int64_t errors = 0, switch_offs = 0;
  };
  Report report() const;

 private:
  const std::string name_;
  mutable check::Mutex mutex_;
  Say say_ COPPICE_GUARDED_BY(mutex_);
  Breaker breaker_ COPPICE_GUARDED_BY(mutex_);
  Report report_ COPPICE_GUARDED_BY(mutex_) = {.why = "nobody has asked it yet"};
};

/// Not thread-safe.
class RedisLink {
 public:
  RedisLink(const RedisAddress& address, RedisHealth& health) : address_(address), health_(health) {}

  /// Connected and greeted. False: not now.
  bool ensure();
  /// False: it failed, and the connection is gone.
  bool send(std::string_view bytes) { return send(std::as_bytes(std::span(bytes))); }
  bool send(std::span<const std::byte> bytes);
  /// None: it failed, and the connection is gone. An error that is about the server, not about the command, also counts
  /// as one of it.
  std::optional<Reply> next();
  bool value(std::span<std::byte> into);
  bool skip_value(std::int64_t bytes);
  std::optional<std::string> short_value(const Reply& reply);

 private:
  WireResult<void> greet(ReplyReader& replies);
  bool failed(const std::string& why);

  const RedisAddress address_;
  RedisHealth& health_;
  std::unique_ptr<Wire> wire_;
  std::optional<ReplyReader> replies_;
};

}  // namespace coppice::tier
