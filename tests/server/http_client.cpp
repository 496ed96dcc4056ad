#include "server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "support/longest_wait.h"

namespace coppice::testing {

namespace {

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string error_field(const HttpAnswer& answer, const char* name) {
  const auto error = answer.json().at("error");
  return error.at(name).is_null() ? "" : error.at(name).get<std::string>();
}

}  // namespace

std::string HttpAnswer::param() const {
  return error_field(*this, "param");
}
std::string HttpAnswer::code() const {
  return error_field(*this, "code");
}

std::vector<std::string> HttpAnswer::events() const {
  std::vector<std::string> data;
  for (std::size_t at = 0; at < body.size();) {
    if (body.compare(at, 7, "event: ") == 0 || body[at] == ':') {  // its name, or a comment: a line by itself
      at = std::min(body.find('\n', at), body.size() - 1) + 1;
      continue;
    }
    const std::size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0)
      throw std::runtime_error("not an event: " + body.substr(at));
    data.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return data;
}

HttpClient::HttpClient(std::uint16_t port, int receive_buffer) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (fd_ < 0) fail("socket");
  const timeval timeout{kLongestWait.count(), 0};
  ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  ::setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
  if (receive_buffer > 0) ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) fail("connect");
}

HttpClient::~HttpClient() {
  close();
}

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpClient::shut_down_sending() {
  ::shutdown(fd_, SHUT_WR);
}

std::uint16_t HttpClient::port() const {
  sockaddr_in address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail("getsockname");
  return ntohs(address.sin_port);
}

/// What a signal interrupts is tried again: with a limit in time, stopping and continuing the process does so.
template <class Call>
static ssize_t retried(Call&& call) {
  ssize_t n;
  do {
    n = call();
  } while (n < 0 && errno == EINTR);
  return n;
}

void HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = retried([&] { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); });
    if (n <= 0) fail("send");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

std::string HttpClient::read_some(std::size_t most) {
  std::array<char, 16384> chunk{};
  const ssize_t n = retried([&] { return ::recv(fd_, chunk.data(), std::min(most, chunk.size()), 0); });
  if (n < 0 && errno == ECONNRESET) return "";
  if (n < 0) fail("recv");
  return {chunk.data(), static_cast<std::size_t>(n)};
}

std::string HttpClient::read_ready(std::size_t most) {
  std::string bytes(most, 0);
  const ssize_t n = ::recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  return bytes;
}

std::string HttpClient::read_until(std::string_view text) {
  const auto begin = std::chrono::steady_clock::now();
  std::size_t at = 0;
  while ((at = buffer_.find(text)) == std::string::npos) {
    // A server that sends comments never lets a single read time out.
    if (std::chrono::steady_clock::now() - begin > kLongestWait)
      throw std::runtime_error("did not come: " + std::string(text) + "; but: " + buffer_.substr(0, 2000));
    const std::string more = read_some();
    if (more.empty()) throw std::runtime_error("the server closed after: " + buffer_);
    buffer_ += more;
  }
  std::string out = buffer_.substr(0, at + text.size());
  buffer_.erase(0, out.size());
  return out;
}

bool HttpClient::closed() {
  return buffer_.empty() && read_some().empty();
}

HttpAnswer HttpClient::receive(bool head_only) {
  HttpAnswer answer;
  std::string head = read_until("\r\n\r\n");
  answer.status = std::stoi(head.substr(9, 3));
  for (std::size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
    const std::size_t end = head.find("\r\n", at), colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (head_only) return answer;
  if (answer.headers.contains("transfer-encoding")) {
    while (true) {
      const std::size_t size = std::stoul(read_until("\r\n"), nullptr, 16);
      while (buffer_.size() < size + 2) {
        const std::string more = read_some();
        if (more.empty()) throw std::runtime_error("the server closed inside a chunk");
        buffer_ += more;
      }
      answer.body += buffer_.substr(0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) return answer;
    }
  }
  if (!answer.headers.contains("content-length")) {  // HTTP/1.0: to the end of the connection
    answer.body = std::exchange(buffer_, "");
    for (std::string more = read_some(); !more.empty(); more = read_some()) answer.body += more;
    return answer;
  }
  const std::size_t length = std::stoul(answer.headers["content-length"]);
  while (buffer_.size() < length) {
    const std::string more = read_some();
    if (more.empty()) throw std::runtime_error("the server closed inside a body");
    buffer_ += more;
  }
  answer.body = buffer_.substr(0, length);
  buffer_.erase(0, length);
  return answer;
}

HttpAnswer HttpClient::get(const std::string& path) {
  send(get_request(path));
  return receive();
}

HttpAnswer HttpClient::post(const std::string& path, const std::string& body) {
  send(post_request(path, body));
  return receive();
}

std::string get_request(const std::string& path, const std::string& fields) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: x\r\n{}\r\n", path, fields);
}

std::string post_request(const std::string& path, const std::string& body, const std::string& fields) {
  return fmt::format("POST {} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}\r\n{}",
                     path, body.size(), fields, body);
}

}  // namespace coppice::testing
