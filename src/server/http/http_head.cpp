#include "server/http/http_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <utility>

#include "server/base/random_name.h"

namespace coppice::server {

namespace http = boost::beast::http;

namespace {

/// The path and query of a target. One in absolute form (RFC 9112, 3.2.2) has a scheme and an authority before them.
std::string_view origin_form(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!boost::beast::iequals(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
    return target;
  }
  return target;
}

/// Whether it is beyond doubt where the body ends (RFC 9112, 6.1 and 6.3): whoever sees another end would see other
/// requests.
bool has_clear_end(const http::request_header<>& head) {
  const auto [first, last] = head.equal_range(http::field::transfer_encoding);
  if (first == last) return true;
  return head.version() >= 11 && std::next(first) == last && boost::beast::iequals(first->value(), "chunked");
}

void check(const http::request_header<>& head, const HttpLimits& limits) {
  if (std::cmp_greater(std::distance(head.begin(), head.end()), limits.max_header_fields))
    throw RequestError(431, fmt::format("The header has over {} fields.", limits.max_header_fields), "",
                       "header_too_large");
  const auto hosts = head.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && head.version() >= 11))
    throw RequestError(400, "An HTTP/1.1 request must have one Host field.", "", "bad_http");
  const std::string_view encoding = head[http::field::content_encoding];
  if (!encoding.empty() && !boost::beast::iequals(encoding, "identity"))
    throw RequestError(
        415, fmt::format("Bodies are not taken in the Content-Encoding '{}': send them as they are.", encoding), "",
        "unsupported_encoding");
  if (!has_clear_end(head))
    throw RequestError(400, "The only Transfer-Encoding taken here is 'chunked', with HTTP/1.1.", "", "bad_http");
}

/// A link that a user follows is none of these.
bool is_from_other_page(const http::request_header<>& head) {
  const std::string_view site = head["Sec-Fetch-Site"];
  return (site == "cross-site" || site == "same-site") && head["Sec-Fetch-Mode"] != "navigate";
}

/// A proxy answers for it: where it says nothing, or not one thing, nobody may be taken for somebody else.
std::optional<std::string> salt_of(const http::request_header<>& head, const HttpLimits& limits) {
  if (limits.salt_field.empty()) return std::nullopt;
  const auto [first, last] = head.equal_range(limits.salt_field);
  if (first == last) return std::nullopt;
  const std::string_view salt = first->value();
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  const bool good =
      std::next(first) == last && !salt.empty() && salt.size() <= kMaxSaltBytes && std::ranges::all_of(salt, visible);
  if (!good)
    throw RequestError(400,
                       fmt::format("The field '{}' must be there once, with 1 to {} visible ASCII characters.",
                                   limits.salt_field, kMaxSaltBytes),
                       "", "bad_salt_header");
  return std::string(salt);
}

}  // namespace

std::string new_request_id() {
  return "req_" + random_name();
}

std::string request_id(const http::request_header<>& head) {
  constexpr std::size_t kMost = 128;
  const std::string_view id = head["X-Request-Id"];
  const auto visible = [](char c) { return c > ' ' && c <= '~'; };
  return !id.empty() && id.size() <= kMost && std::ranges::all_of(id, visible) ? std::string(id) : new_request_id();
}

std::string request_method(const http::request_header<>& head) {
  return head.method() == http::verb::head ? "GET" : std::string(head.method_string());
}

std::string request_path(const http::request_header<>& head) {
  const std::string_view target = origin_form(head.target());
  const std::string_view path = target.substr(0, target.find('?'));
  return path.empty() ? "/" : std::string(path);
}

HttpRequest read_head(const http::request_header<>& head, const HttpLimits& limits) {
  check(head, limits);
  HttpRequest request;
  const std::string_view target = origin_form(head.target());
  request.path = request_path(head);
  if (const auto mark = target.find('?'); mark != target.npos) request.query = target.substr(mark + 1);
  request.method = request_method(head);
  if (const auto [first, last] = head.equal_range(http::field::authorization);
      first != last && std::next(first) == last)
    request.authorization = std::string_view(first->value());
  else if (const std::string_view key = head["X-Api-Key"]; first == last && !key.empty())  // Anthropic's clients
    request.authorization = fmt::format("Bearer {}", key);
  request.salt = salt_of(head, limits);
  request.host = std::string_view(head[http::field::host]);
  request.from_other_page = is_from_other_page(head);
  request.origin = std::string_view(head[http::field::origin]);
  request.asked_fields = std::string_view(head[http::field::access_control_request_headers]);
  request.asks_for_method = head.count(http::field::access_control_request_method) > 0;
  return request;
}

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

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
    const std::string_view key = field.substr(0, field.find('='));
    if (percent_decoded(key) != name) continue;
    std::string value(field.substr(std::min(key.size() + 1, field.size())));
    std::ranges::replace(value, '+', ' ');
    return percent_decoded(value);
  }
  return std::nullopt;
}

std::string salt_of(const HttpRequest& request) {
  return request.salt ? *request.salt : query_value(request.query, "cache_salt").value_or("");
}

std::optional<RequestError> protocol_error(boost::system::error_code error, bool overdue, const HttpLimits& limits) {
  if (overdue) return RequestError(408, "The request took too long to arrive.", "", "request_timeout");
  if (error == http::error::header_limit)
    return RequestError(431, fmt::format("The header is over the limit of {} bytes.", limits.max_header_bytes), "",
                        "header_too_large");
  if (error == http::error::body_limit)
    return RequestError(413, fmt::format("The body is over the limit of {} bytes.", limits.max_body_bytes), "",
                        "body_too_large");
  const bool closed = error == http::error::end_of_stream || error == http::error::partial_message;
  if (!closed && error.category() == http::make_error_code(http::error::bad_method).category())
    return RequestError(400, "The request is not valid HTTP: " + error.message() + ".", "", "bad_http");
  return std::nullopt;
}

}  // namespace coppice::server
