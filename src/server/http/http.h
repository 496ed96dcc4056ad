// HTTP as those who answer requests see it. No sockets here.
#pragma once

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <string>
#include <string_view>

#include "server/base/reply.h"
#include "server/base/request_error.h"
#include "server/http/body_budget.h"

namespace coppice::server {

struct HttpRequest {
  std::string method;         ///< "GET"; HEAD comes as GET, its body is dropped on the way out
  std::string path;           ///< without the query
  std::string authorization;  ///< the field's value; empty: none, or more than one
  std::string client;         ///< set by HttpHandler::admit(), for the log: whose key it is
  std::string tenant_salt;    ///< set by HttpHandler::admit(): goes before the salts of the engine's requests
  std::string body;
  BodyBudget::Charge body_charge;

  /// For a handler that has read the body and goes on for long.
  void drop_body() {
    std::string().swap(body);
    body_charge = {};
  }
};

/// What answers requests.
class HttpHandler {
 public:
  /// A request's head is there, its body is not. Throws RequestError: the request is refused, its body not taken.
  virtual void admit(HttpRequest& request) = 0;
  /// Answers an admitted request.
  virtual boost::asio::awaitable<void> handle(HttpRequest& request, ReplyWriter& out) = 0;
  /// The reply to a request or a connection that is refused before it comes to handle(). `path`: as HttpRequest's; empty: the
  /// head was not read.
  virtual Reply refuse(const RequestError& error, std::string_view path) = 0;

 protected:
  ~HttpHandler() = default;
};

struct HttpFigures {
  std::size_t connections = 0;  ///< open ones
  std::size_t body_bytes = 0;   ///< of bodies that are arriving or wait to be prepared
};

/// What a client may take of the server.
struct HttpLimits {
  std::size_t max_header_bytes = std::size_t{32} << 10;
  std::size_t max_header_fields = 100;
  std::size_t max_body_bytes = std::size_t{16} << 20;
  std::size_t max_bodies_bytes = std::size_t{64} << 20;  ///< see body_budget()
  std::size_t small_body_bytes = std::size_t{64} << 10;  ///< of each body: free of the budget and of a least rate
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
  int send_buffer_bytes = 0;          ///< per socket; 0: the system's choice

  /// For all bodies that are arriving or wait to be prepared, besides the first small_body_bytes of each: so a few large ones
  /// cannot keep all others out.
  std::size_t body_budget() const { return std::max(max_bodies_bytes, 4 * max_body_bytes); }
};

}  // namespace coppice::server
