#include "server/api/browser_guard.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <optional>

#include "server/base/request_error.h"
#include "text/utf8_stream.h"

namespace coppice::server {

namespace {

std::string in_small_letters(std::string_view text) {
  std::string small(text);
  std::ranges::transform(small, small.begin(), [](char c) { return 'A' <= c && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return small;
}

std::string_view without_brackets(std::string_view host) {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

std::optional<boost::asio::ip::address> address_of(std::string_view host) {
  boost::system::error_code error;
  auto address = boost::asio::ip::make_address(without_brackets(host), error);
  if (error) return std::nullopt;
  return address;
}

/// "name:8080": "name". A colon within brackets belongs to an address.
std::string_view without_port(std::string_view authority) {
  const std::size_t colon = authority.rfind(':');
  if (colon == authority.npos || authority.find_first_not_of("0123456789", colon + 1) != authority.npos)
    return authority;
  return authority.substr(0, colon);
}

std::string_view without_usual_port(std::string_view authority) {
  for (const std::string_view port : {":80", ":443"})
    if (without_port(authority).size() + port.size() == authority.size() && authority.ends_with(port))
      return without_port(authority);
  return authority;
}

/// A page that came from here. Whether with TLS: a proxy may have added it.
bool is_own(std::string_view origin, std::string_view host) {
  const std::size_t scheme = origin.find("://");
  if (scheme == origin.npos) return false;
  return in_small_letters(without_usual_port(origin.substr(scheme + 3))) == in_small_letters(without_usual_port(host));
}

/// No name server of the Internet gives an address for one of these, so no stranger can bind it anew.
bool is_local_name(std::string_view host) {
  return host.find('.') == host.npos || host.ends_with(".local") || host.ends_with(".internal");
}

}  // namespace

bool is_loopback(std::string_view host) {
  if (in_small_letters(host) == "localhost") return true;
  const auto address = address_of(host);
  return address && address->is_loopback();
}

BrowserGuard::BrowserGuard(std::string_view listens_on, std::string_view names) : beyond_(!is_loopback(listens_on)) {
  names_.push_back(in_small_letters(without_brackets(listens_on)));
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(','));
    names.remove_prefix(std::min(name.size() + 1, names.size()));
    all_ |= name == "*";
    names_.push_back(in_small_letters(without_brackets(without_port(name))));
  }
}

bool BrowserGuard::is_ours(std::string_view host) const {
  if (host.empty() || is_loopback(host)) return true;  // no browser leaves it out
  const std::string name = in_small_letters(without_brackets(host));
  if (std::ranges::find(names_, name) != names_.end()) return true;
  return beyond_ && (address_of(host) || is_local_name(name));
}

void BrowserGuard::check(const HttpRequest& request, bool open, const Cors& cors) const {
  if (!all_ && !cors.allows_all() && !is_ours(without_port(request.host)))
    throw RequestError(403,
                       fmt::format("This server is not known as '{}'. Its operator can add the name with --hosts.",
                                   text::to_utf8(request.host)),
                       "", "unknown_host");
  if (open && request.method == "GET") return;
  const bool foreign = request.origin.empty() ? request.from_other_page && !cors.allows_all()
                                              : !is_own(request.origin, request.host) && !cors.allows(request.origin);
  if (foreign)
    throw RequestError(403,
                       fmt::format("Web pages of {} may not use this server. Its operator can allow it with --cors.",
                                   request.origin.empty() ? "another origin" : text::to_utf8(request.origin)),
                       "", "foreign_origin");
}

}  // namespace coppice::server
