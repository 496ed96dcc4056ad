// HTTP as the rest of the server sees it: a request, a reply, a way to send it. No sockets here.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::server {

struct HttpRequest {
  std::string method;  ///< "GET"; HEAD comes as GET, its body is dropped on the way out
  std::string path;    ///< without the query
  std::string query;
  std::string body;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

/// One response's way to its client. Each method returns when the bytes are in the socket's buffer, and throws
/// boost::system::system_error when the client is gone or reads too slowly.
class ReplyWriter {
 public:
  /// A whole response. REQUIRES: nothing was sent yet.
  virtual boost::asio::awaitable<void> send(HttpReply reply) = 0;
  /// The head of a stream of server-sent events. REQUIRES: nothing was sent yet.
  virtual boost::asio::awaitable<void> begin_stream() = 0;
  virtual boost::asio::awaitable<void> write(std::string_view events) = 0;
  virtual boost::asio::awaitable<void> end_stream() = 0;
  virtual bool begun() const = 0;  ///< something was sent

 protected:
  ~ReplyWriter() = default;
};

using HttpHandler = std::function<boost::asio::awaitable<void>(const HttpRequest&, ReplyWriter&)>;

/// What a client may take of the server.
struct HttpLimits {
  std::size_t max_header_bytes = std::size_t{32} << 10;
  std::size_t max_body_bytes = std::size_t{16} << 20;
  std::size_t max_connections = 16384;
  double idle_seconds = 75;    ///< between requests of one connection
  double header_seconds = 10;  ///< for a request's head, once begun
  double body_seconds = 60;
  double write_seconds = 30;  ///< without the client taking a single byte
  int send_buffer_bytes = 0;  ///< per socket; 0: the system's choice
};

}  // namespace coppice::server
