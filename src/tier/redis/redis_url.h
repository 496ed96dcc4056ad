// Where a Redis or Valkey server is, and who asks it. Plain data.
#pragma once

#include <expected>
#include <string>
#include <string_view>

namespace coppice::tier {

struct RedisAddress {
  std::string host;
  int port = 6379;
  int db = 0;
  bool tls = false;
  std::string user, password;  ///< empty: none
};

/// redis://host[:port][/db], or rediss:// for TLS; [::1] for an address of IPv6. Not with a password in it, which
/// everybody on the machine could see. Error: a sentence.
std::expected<RedisAddress, std::string> parse_redis_url(std::string_view url);

}  // namespace coppice::tier
