#include "server/fetch/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>

namespace coppice::server {

namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

std::string in_lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), lower);
  return result;
}

bool is_name(std::string_view host) {
  return !host.empty() && host.size() <= 253 && std::ranges::all_of(host, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
}

bool is_v6(std::string_view host) {
  return host.contains(':') && std::ranges::all_of(host, [](char c) {
           return (c >= 'a' && c <= 'f') || (c >= '0' && c <= '9') || c == ':' || c == '.';
         });
}

/// What a request's line may hold: a line break or a blank would end it.
bool is_visible(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c < '\x7f' && c != '\\'; });
}

std::optional<std::string_view> behind(std::string_view text, std::string_view scheme) {
  if (text.size() < scheme.size() || in_lower_case(text.substr(0, scheme.size())) != scheme) return std::nullopt;
  return text.substr(scheme.size());
}

}  // namespace

std::string Url::authority() const {
  const std::string name = host.contains(':') ? "[" + host + "]" : host;
  return port == (tls ? 443 : 80) ? name : fmt::format("{}:{}", name, port);
}

std::optional<Url> parse_url(std::string_view text) {
  Url url;
  auto rest = behind(text, "https://");
  url.tls = rest.has_value();
  if (!rest) rest = behind(text, "http://");
  if (!rest || !is_visible(text)) return std::nullopt;
  std::string_view authority = rest->substr(0, rest->find_first_of("/?#"));
  std::string_view target = rest->substr(authority.size());
  target = target.substr(0, target.find('#'));
  url.target = target.starts_with('/') ? std::string(target) : "/" + std::string(target);
  url.port = url.tls ? 443 : 80;
  const bool v6 = authority.starts_with('[');
  const std::size_t end = v6 ? authority.find(']') : authority.find(':');
  if (v6 && end == authority.npos) return std::nullopt;
  url.host = in_lower_case(v6 ? authority.substr(1, end - 1) : authority.substr(0, end));
  if (!v6 && url.host.ends_with('.')) url.host.pop_back();
  if (!(v6 ? is_v6(url.host) : is_name(url.host))) return std::nullopt;
  std::string_view port = end == authority.npos ? std::string_view() : authority.substr(end + (v6 ? 1 : 0));
  if (port.empty()) return url;
  if (port.front() != ':') return std::nullopt;
  port.remove_prefix(1);
  if (port.empty()) return url;
  const auto [last, error] = std::from_chars(port.data(), port.data() + port.size(), url.port);
  if (error != std::errc() || last != port.data() + port.size() || url.port == 0) return std::nullopt;
  return url;
}

bool is_address(const std::string& host) {
  boost::system::error_code error;
  boost::asio::ip::make_address(host, error);
  return !error;
}

bool is_redirection(unsigned status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::optional<Url> redirected(const Url& from, std::string_view location) {
  const std::string scheme = from.tls ? "https:" : "http:";
  if (location.starts_with("//")) return parse_url(scheme + std::string(location));
  if (const std::size_t end = location.find_first_of(":/?#"); end != location.npos && location[end] == ':')
    return parse_url(location);
  const std::string_view path = std::string_view(from.target).substr(0, from.target.find('?'));
  std::string target(location);
  if (location.starts_with('?')) {
    target = std::string(path) + target;
  } else if (!location.starts_with('/')) {
    target = std::string(path.substr(0, path.rfind('/') + 1)) + target;
  }
  return parse_url(fmt::format("{}//{}{}", scheme, from.authority(), target));
}

}  // namespace coppice::server
