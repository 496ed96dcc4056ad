// What a client may take of the server: for the command line and for connections.
//
// A new limit: here; who heeds it: http_server.cpp, http_session.cpp or timed_socket.h; if operators may set it,
// cli/serve_options.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace coppice::server {

/// The cache keeps each salt as long as its blocks.
inline constexpr std::size_t kMaxSaltBytes = 256;

struct HttpLimits {
  std::size_t max_header_bytes = std::size_t{32} << 10;
  std::size_t max_header_fields = 100;
  std::size_t max_body_bytes = std::size_t{16} << 20;
  std::size_t max_bodies_bytes = std::size_t{64} << 20;  ///< see body_budget()
  std::size_t small_body_bytes = std::size_t{64} << 10;  ///< of each body: free of the budget and of a least rate
  std::size_t max_replies_bytes = std::size_t{128}
                                  << 20;  ///< that clients haven't taken, but for small_body_bytes of each
  std::size_t max_small_bytes = std::size_t{256} << 20;  ///< those first bytes of all bodies, and of all replies; of
                                                         ///< one key or address half of it
  std::size_t max_connections = 16384;
  double idle_seconds = 75;         ///< between requests of one connection
  double crowded_idle_seconds = 5;  ///< the same when most of max_connections are open
  double header_seconds = 10;       ///< for a request's head, once begun
  double body_seconds = 60;
  double body_piece_seconds = 5;      ///< for each small_body_bytes of a body after its first
  double last_request_seconds = 0.5;  ///< for all that is missing of a request when the server begins to end
  double linger_seconds = 2;          ///< for what a refused client still sends to be read
  double write_seconds = 30;          ///< for a client to take what is written, and
  double slowest_reader = 16 << 10;   ///< a second more for so many bytes of it
  std::string salt_field;             ///< of a request's head, which a proxy sets: its cache_salt. Empty: there is none
  int send_buffer_bytes = 0;          ///< per socket; 0: the system's choice

  /// Connections of one address that may wait for a request or its end. A proxy may bring everybody from one address.
  std::size_t most_waiting_of_address() const { return std::max(max_connections / 2, std::size_t{64}); }

  /// For all bodies that are arriving or wait to be prepared, besides the first small_body_bytes of each: so a few
  /// large ones cannot keep all others out.
  std::size_t body_budget() const { return std::max(max_bodies_bytes, 4 * max_body_bytes); }
};

}  // namespace coppice::server
