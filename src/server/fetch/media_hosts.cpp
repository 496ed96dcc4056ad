#include "server/fetch/media_hosts.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/system/error_code.hpp>
#include <optional>
#include <stdexcept>

#include "server/fetch/url.h"

namespace coppice::server {

namespace {

namespace ip = boost::asio::ip;

bool lies_in(const ip::address_v4& address, const ip::network_v4& network) {
  return (address.to_uint() & network.netmask().to_uint()) == network.network().to_uint();
}

bool lies_in(const ip::address_v6& address, const ip::network_v6& network) {
  const auto a = address.to_bytes(), n = network.address().to_bytes();
  for (unsigned bit = 0; bit < network.prefix_length(); ++bit)
    if (((a[bit / 8] ^ n[bit / 8]) & (0x80U >> (bit % 8))) != 0) return false;
  return true;
}

/// An IPv4 address in the clothes of an IPv6 one is that address: the system connects there.
ip::address plain(const ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped()) return ip::make_address_v4(ip::v4_mapped, address.to_v6());
  return address;
}

// IANA's registries of special addresses: what isn't globally reachable, and what stands for an IPv4 address.
constexpr const char* kSpecialV4[] = {"0.0.0.0/8",      "10.0.0.0/8",     "100.64.0.0/10", "127.0.0.0/8",
                                      "169.254.0.0/16", "172.16.0.0/12",  "192.0.0.0/24",  "192.0.2.0/24",
                                      "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
                                      "203.0.113.0/24", "224.0.0.0/4",    "240.0.0.0/4"};
constexpr const char* kGlobalV6 = "2000::/3";
constexpr const char* kSpecialV6[] = {"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"};

}  // namespace

bool is_public(const ip::address& any) {
  const ip::address address = plain(any);
  if (address.is_v4()) {
    return std::ranges::none_of(
        kSpecialV4, [&](const char* network) { return lies_in(address.to_v4(), ip::make_network_v4(network)); });
  }
  const ip::address_v6 v6 = address.to_v6();
  return v6.scope_id() == 0 && lies_in(v6, ip::make_network_v6(kGlobalV6)) &&
         std::ranges::none_of(kSpecialV6,
                              [&](const char* network) { return lies_in(v6, ip::make_network_v6(network)); });
}

MediaHosts::MediaHosts(const std::vector<std::string>& hosts) {
  for (const std::string& host : hosts) {
    boost::system::error_code error;
    if (host == "*") {
      all_ = true;
    } else if (const auto address = ip::make_address(host, error); !error) {
      if (address.is_v4()) {
        networks_.emplace_back(ip::network_v4(address.to_v4(), 32));
      } else {
        networks_.emplace_back(ip::network_v6(address.to_v6(), 128));
      }
    } else if (const auto v4 = ip::make_network_v4(host, error); !error) {
      networks_.emplace_back(v4.canonical());
    } else if (const auto v6 = ip::make_network_v6(host, error); !error) {
      networks_.emplace_back(v6);
    } else if (const auto url = parse_url("http://" + host.substr(host.starts_with("*.") ? 2 : 0) + "/");
               url && url->target == "/" && url->port == 80 && !host.contains(':')) {
      host.starts_with("*.") ? domains_.push_back("." + url->host) : names_.push_back(url->host);
    } else {
      throw std::invalid_argument(
          fmt::format("'{}' is no host: a name, *.name, *, an address or a network is wanted, without scheme, port and "
                      "path",
                      host));
    }
  }
}

bool MediaHosts::listed(const ip::address& any) const {
  const ip::address address = plain(any);
  return std::ranges::any_of(networks_, [&](const Network& network) {
    const auto* v4 = std::get_if<ip::network_v4>(&network);
    if (v4 != nullptr) return address.is_v4() && lies_in(address.to_v4(), *v4);
    return address.is_v6() && lies_in(address.to_v6(), std::get<ip::network_v6>(network));
  });
}

bool MediaHosts::may_say(std::string_view host) const {
  boost::system::error_code error;
  if (const auto address = ip::make_address(std::string(host), error); !error)
    return listed(address) || (all_ && is_public(address));
  return all_ || std::ranges::find(names_, host) != names_.end() ||
         std::ranges::any_of(domains_, [&](const std::string& domain) {
           return host.size() > domain.size() && host.ends_with(domain);
         });
}

bool MediaHosts::may_connect(const ip::address& address) const {
  return is_public(address) || listed(address);
}

}  // namespace coppice::server
