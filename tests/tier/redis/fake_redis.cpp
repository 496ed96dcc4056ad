#include "tier/redis/fake_redis.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace coppice::test {

namespace {

/// Blocking; throws when the client is gone.
class Input {
 public:
  explicit Input(int socket) : socket_(socket) {}
  std::string line() {
    std::size_t end = 0;
    while ((end = there_.find("\r\n", at_)) == std::string::npos) more();
    std::string text = there_.substr(at_, end - at_);
    at_ = end + 2;
    return text;
  }
  std::string bytes(std::size_t n) {
    while (there_.size() - at_ < n) more();
    at_ += n;
    return there_.substr(at_ - n, n);
  }

 private:
  void more() {
    char got[65536];
    const auto n = ::recv(socket_, got, sizeof got, 0);
    if (n <= 0) throw std::runtime_error("gone");
    there_.erase(0, std::exchange(at_, 0));
    there_.append(got, static_cast<std::size_t>(n));
  }

  std::size_t at_ = 0;
  int socket_;
  std::string there_;
};

}  // namespace

FakeRedis::FakeRedis() {
  listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ::bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::listen(listener_, 16);
  socklen_t size = sizeof address;
  ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] {
    for (;;) {
      const int socket = ::accept(listener_, nullptr, nullptr);
      if (socket < 0 || ends_) return;
      const int yes = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      const std::lock_guard lock(mutex_);
      sockets_.push_back(socket);
      threads_.emplace_back([this, socket] { serve(socket); });
    }
  });
}

FakeRedis::~FakeRedis() {
  ends_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  for (const int socket : sockets_) ::shutdown(socket, SHUT_RDWR);
  for (std::thread& thread : threads_) thread.join();
  for (const int socket : sockets_) ::close(socket);
  ::close(listener_);
}

std::map<std::string, std::string> FakeRedis::values() {
  const std::lock_guard lock(mutex_);
  return values_;
}

void FakeRedis::serve(int socket) {
  Input input(socket);
  bool greeted = password.empty();
  try {
    for (;;) {
      std::vector<std::string> command(static_cast<std::size_t>(std::stoi(input.line().substr(1))));
      for (std::string& argument : command) {
        const auto n = static_cast<std::size_t>(std::stoi(input.line().substr(1)));
        argument = input.bytes(n);
        input.bytes(2);
      }
      std::string reply = answer(command, greeted);
      const int most = cut_after;
      bool cut = most >= 0 && reply.starts_with('$') && reply.size() > 100;
      if (cut) reply.resize(std::min(reply.size() - 1, static_cast<std::size_t>(most)));
      if (meddle && command[0] != "AUTH" && command[0] != "SELECT" && command[0] != "INFO") {
        const std::lock_guard lock(mutex_);
        cut = meddle(reply);
      }
      ::send(socket, reply.data(), reply.size(), MSG_NOSIGNAL);
      if (cut) break;
    }
  } catch (const std::exception&) {
  }
  ::shutdown(socket, SHUT_RDWR);
}

std::string FakeRedis::answer(const std::vector<std::string>& command, bool& greeted) {
  const std::lock_guard lock(mutex_);
  const std::string& what = command[0];
  if (garbage) return "HTTP/1.1 400 Bad Request\r\n\r\n";
  if (what == "AUTH") greeted = command.back() == password;
  if (!greeted) return what == "AUTH" ? "-WRONGPASS invalid\r\n" : "-NOAUTH Authentication required.\r\n";
  if (what == "AUTH" || what == "SELECT") return "+OK\r\n";
  if (what == "PING") return "+PONG\r\n";
  if (what == "INFO") {
    const std::string text = fmt::format("# Cluster\r\ncluster_enabled:{}\r\n", cluster ? 1 : 0);
    return fmt::format("${}\r\n{}\r\n", text.size(), text);
  }
  if (what == "EXISTS" || what == "EXPIRE") return values_.contains(command[1]) ? ":1\r\n" : ":0\r\n";
  if (what == "UNLINK") return fmt::format(":{}\r\n", values_.erase(command[1]));
  if (what == "SETEX") {
    if (full) return "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
    values_[command[1]] = command[3];
    return "+OK\r\n";
  }
  if (what == "GETEX" && !old) {
    const auto found = values_.find(command[1]);
    if (found == values_.end()) return "$-1\r\n";
    std::string value = found->second;
    if (flips) value[value.size() / 2] = static_cast<char>(value[value.size() / 2] ^ 4);
    return fmt::format("${}\r\n{}\r\n", value.size(), value);
  }
  if (what == "SCAN") {  // patterns are "prefix*" here, or with a '*' for one of three parts
    std::string keys;
    int n = 0;
    for (const auto& [key, value] : values_) {
      bool fits = true;
      for (std::size_t i = 0, k = 0; i < command[3].size() && fits; ++i) {
        if (command[3][i] != '*') {
          fits = k < key.size() && key[k++] == command[3][i];
        } else {
          k = i + 1 == command[3].size() ? key.size() : k + 32;
        }
      }
      if (!fits) continue;
      ++n;
      keys += fmt::format("${}\r\n{}\r\n", key.size(), key);
    }
    return fmt::format("*2\r\n$1\r\n0\r\n*{}\r\n{}", n, keys);
  }
  return fmt::format("-ERR unknown command '{}'\r\n", what);
}

}  // namespace coppice::test
