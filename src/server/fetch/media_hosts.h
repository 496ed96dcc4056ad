// MediaHosts: from whom files may be fetched, as the operator says. A client chooses URLs, and the server may reach
// what the client can't: so neither a name nor a redirection leads to an address that isn't public, unless the operator
// named that very address or network.
//
// A value; any number of threads may read one.
#pragma once

#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/network_v4.hpp>
#include <boost/asio/ip/network_v6.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace coppice::server {

class MediaHosts {
 public:
  MediaHosts() = default;
  /// Each: a name; "*.name": all names below it; "*": all; an address; a network ("10.1.0.0/16"). Throws
  /// std::invalid_argument.
  explicit MediaHosts(const std::vector<std::string>& hosts);

  bool none() const { return !all_ && names_.empty() && domains_.empty() && networks_.empty(); }
  /// May a URL say this host, a name or an address?
  bool may_say(std::string_view host) const;
  /// May a file come from there, as a host's address?
  bool may_connect(const boost::asio::ip::address& address) const;

 private:
  using Network = std::variant<boost::asio::ip::network_v4, boost::asio::ip::network_v6>;

  bool listed(const boost::asio::ip::address& address) const;

  bool all_ = false;
  std::vector<std::string> names_;
  std::vector<std::string> domains_;  ///< ".name"
  std::vector<Network> networks_;
};

/// An address of the whole internet: no one's own, no link's, no host's, none that stands for another one.
bool is_public(const boost::asio::ip::address& address);

}  // namespace coppice::server
