// Url: where a file is fetched from, http or https.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace coppice::server {

struct Url {
  bool tls = false;
  std::string host;  ///< lower case; an IPv6 address has no brackets
  std::uint16_t port = 0;
  std::string target;  ///< path and query, as they are sent

  /// As the field Host has it.
  std::string authority() const;
  bool operator==(const Url&) const = default;
};

/// None: it is no http or https URL, or one with a user's name, or with characters that no URL has.
std::optional<Url> parse_url(std::string_view text);

/// Whether a URL's host is an address and no name.
bool is_address(const std::string& host);

/// Whether an answer of this status sends its client elsewhere, to its field Location.
bool is_redirection(unsigned status);

/// What a redirection means by `location`, a URL or a part of one. None: as parse_url().
std::optional<Url> redirected(const Url& from, std::string_view location);

}  // namespace coppice::server
