// A reply and the way it is written, for those who make replies and know no connections.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace coppice::server {

struct Reply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
};

/// One reply's way to its client. Each method returns when the bytes are in the socket's buffer, and throws
/// boost::system::system_error when the client is gone or reads too slowly.
class ReplyWriter {
 public:
  /// A whole reply. REQUIRES: nothing was sent yet.
  virtual boost::asio::awaitable<void> send(Reply reply) = 0;
  /// Room for a whole reply of about so many bytes, before it is made. Throws RequestError: others take it all.
  virtual void reserve(std::size_t) {}
  /// The head of a stream of server-sent events. REQUIRES: nothing was sent yet.
  virtual boost::asio::awaitable<void> begin_stream() = 0;
  virtual boost::asio::awaitable<void> write(std::string_view events) = 0;
  virtual boost::asio::awaitable<void> end_stream() = 0;
  virtual bool begun() const = 0;      ///< something was sent, or may have been
  virtual bool streaming() const = 0;  ///< what was sent is a stream's beginning, up to the end of a write()

 protected:
  ~ReplyWriter() = default;
};

}  // namespace coppice::server
