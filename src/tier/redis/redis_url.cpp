#include "tier/redis/redis_url.h"

#include <charconv>
#include <optional>

namespace coppice::tier {

namespace {

std::optional<int> number_in(std::string_view text, int most) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0 || number > most) return std::nullopt;
  return number;
}

}  // namespace

std::expected<RedisAddress, std::string> parse_redis_url(std::string_view url) {
  RedisAddress address;
  address.tls = url.starts_with("rediss://");
  if (!address.tls && !url.starts_with("redis://")) return std::unexpected("It must begin with redis:// or rediss://.");
  std::string_view rest = url.substr(url.find("//") + 2);
  if (rest.contains('@')) return std::unexpected("User and password don't belong in it: others on the machine see it.");
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    const std::string_view db = rest.substr(slash + 1);
    const auto number = number_in(db, 65535);
    if (!db.empty() && !number) return std::unexpected("What follows the slash must be the number of a database.");
    address.db = number.value_or(0);
    rest = rest.substr(0, slash);
  }
  std::string_view port;
  if (rest.starts_with('[')) {
    const auto close = rest.find(']');
    if (close == std::string_view::npos) return std::unexpected("The address lacks its ].");
    address.host = rest.substr(1, close - 1);
    rest = rest.substr(close + 1);
    if (!rest.empty() && !rest.starts_with(':')) return std::unexpected("What follows the ] must be :PORT.");
    port = rest;
  } else {
    const auto colon = rest.find(':');
    address.host = rest.substr(0, colon);
    if (colon != std::string_view::npos) port = rest.substr(colon);
  }
  if (address.host.empty()) return std::unexpected("It names no host.");
  if (!port.empty()) {
    const auto number = number_in(port.substr(1), 65535);
    if (!number || *number == 0) return std::unexpected("The port must be a number from 1 to 65535.");
    address.port = *number;
  }
  return address;
}

}  // namespace coppice::tier
