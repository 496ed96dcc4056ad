#include "cli/demo_calls.h"

#include <fmt/format.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <stdexcept>
#include <string_view>

#include "cli/http_client.h"

namespace coppice::cli {

boost::json::value post_json(std::uint16_t port, const std::string& path, const boost::json::object& body) {
  const HttpReply reply = http_post(port, path, boost::json::serialize(body), [](std::string_view) {});
  if (reply.status != 200)
    throw std::runtime_error(fmt::format("the server answered {}: {}", reply.status, reply.body.substr(0, 300)));
  return boost::json::parse(reply.body);
}

boost::json::value cache_stats(std::uint16_t port) {
  return boost::json::parse(http_get(port, "/v1/cache/stats").body);
}

void warm_up(std::uint16_t port) {
  post_json(port, "/v1/completions", {{"prompt", "Once upon a time, a lighthouse keeper"}, {"max_tokens", 4}});
}

}  // namespace coppice::cli
