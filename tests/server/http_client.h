// HttpClient: a small blocking HTTP client on a raw socket, which can also misbehave: send half a request, stop
// reading, vanish. Every wait ends after a minute.
//
// Throws std::runtime_error when the server closed, or said nothing in time.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace coppice::testing {

struct HttpAnswer {
  int status = 0;
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;                            ///< chunks joined

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  /// error.param, error.code; "" for null.
  std::string param() const;
  std::string code() const;
  /// The data of a stream's events, [DONE] included.
  std::vector<std::string> events() const;
};

class HttpClient {
 public:
  /// receive_buffer: bytes the kernel keeps for us (0: its choice); a small one makes a slow reader.
  explicit HttpClient(std::uint16_t port, int receive_buffer = 0);
  struct Connected {
    int fd;
  };
  /// Takes over a socket as it is: if that doesn't block, waits fail at once.
  explicit HttpClient(Connected socket) : fd_(socket.fd) {}
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void send(std::string_view bytes);
  HttpAnswer receive(bool head_only = false);          ///< one response
  std::string read_some(std::size_t most = SIZE_MAX);  ///< bytes; "": the server closed
  std::string read_ready(std::size_t most);            ///< what is there now; "": nothing, or the server closed
  std::string read_until(std::string_view text);       ///< what came so far, `text` included
  bool closed();                                       ///< waits: does the server close, sending nothing more?
  void close();                                        ///< vanish
  void shut_down_sending();                            ///< the server sees the end of our bytes; we still read
  std::uint16_t port() const;                          ///< our end's

  // Whole exchanges on this connection.
  HttpAnswer get(const std::string& path);
  HttpAnswer post(const std::string& path, const std::string& body);

 private:
  int fd_;
  std::string buffer_;
};

/// `fields`: further lines of the head, each with its line end.
std::string get_request(const std::string& path, const std::string& fields = "");
std::string post_request(const std::string& path, const std::string& body, const std::string& fields = "");

}  // namespace coppice::testing
