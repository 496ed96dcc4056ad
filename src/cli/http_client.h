// A small blocking HTTP client for the demo, the load generator and the benchmarks: plain HTTP/1.1 to one
// server. Thread safety: functions without state, callable from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace coppice::cli {

struct Endpoint {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
};

/// The server could not be reached, answered with an error, or broke off. The message is fit for people.
class HttpFailure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Reads "http://host:port". Throws HttpFailure on anything else.
Endpoint parse_url(std::string_view url);

/// The status of GET `path`, or 0 when nobody listens.
int http_status(const Endpoint& server, const std::string& path);

/// The body of GET `path`. Throws HttpFailure unless the status is 200 and the body is JSON.
nlohmann::json http_get_json(const Endpoint& server, const std::string& path);

/// POSTs a request with "stream": true and calls on_event with each event's JSON as it arrives; returns after
/// the closing [DONE]. Throws HttpFailure.
void http_post_stream(const Endpoint& server, const std::string& path, const nlohmann::json& body,
                      const std::function<void(const nlohmann::json&)>& on_event);

}  // namespace coppice::cli
