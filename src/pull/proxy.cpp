#include "pull/proxy.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <initializer_list>
#include <stdexcept>
#include <string_view>

#include "pull/names.h"
#include "server/http/http_head.h"

namespace coppice::pull {

namespace {

std::string first_of(const Variables& variables, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (std::string value = variables(name); !value.empty()) return value;
  return "";
}

/// "example.org" and ".example.org": it, and all names below.
bool is_below(std::string_view host, std::string_view domain) {
  if (domain.starts_with('.')) domain.remove_prefix(1);
  return !domain.empty() && host.ends_with(domain) &&
         (host.size() == domain.size() || host[host.size() - domain.size() - 1] == '.');
}

bool is_left_out(const std::string& host, std::string_view list) {
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    std::string_view one = list.substr(0, end);
    list.remove_prefix(std::min(end + 1, list.size()));
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (one == "*" || is_below(host, one)) return true;
  }
  return false;
}

std::string basic(const std::string& user) {
  std::string text(4 * ((user.size() + 2) / 3) + 1, '\0');  // and a zero
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(user.data()), static_cast<int>(user.size()));
  text.resize(static_cast<std::size_t>(size));
  return "Basic " + text;
}

}  // namespace

std::optional<Proxy> proxy_for(const server::Url& url, const Variables& variables) {
  if (is_left_out(url.host, first_of(variables, {"no_proxy", "NO_PROXY"}))) return std::nullopt;
  std::string text = url.tls ? first_of(variables, {"https_proxy", "HTTPS_PROXY"}) : variables("http_proxy");
  if (text.empty()) text = first_of(variables, {"all_proxy", "ALL_PROXY"});
  if (text.empty()) return std::nullopt;
  if (!text.contains("://")) text = "http://" + text;
  Proxy proxy;
  const std::size_t begin = text.find("://") + 3, end = text.find_first_of("/?#", begin);
  if (const std::size_t at = text.substr(0, end).rfind('@'); at != text.npos && at >= begin) {
    proxy.authorization = basic(server::percent_decoded(text.substr(begin, at - begin)));
    text.erase(begin, at + 1 - begin);
  }
  const auto found = server::parse_url(text);
  if (!found || found->tls)
    throw std::runtime_error(fmt::format("The proxy '{}' can't be used: it must be http://HOST:PORT.", shown(text)));
  proxy.at = *found;
  return proxy;
}

}  // namespace coppice::pull
