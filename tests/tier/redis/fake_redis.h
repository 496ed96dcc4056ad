// FakeRedis: a server on 127.0.0.1 with the few commands that a store needs, that fails as it is told.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace coppice::test {

class FakeRedis {
 public:
  FakeRedis();
  ~FakeRedis();

  int port() const { return port_; }
  std::map<std::string, std::string> values();

  std::atomic<bool> cluster = false, full = false, garbage = false, old = false;
  /// Connections end after so many bytes of an answer with a value. -1: never.
  std::atomic<int> cut_after = -1;
  std::atomic<bool> flips = false;  ///< a bit of each value
  std::string password;             ///< set it before anybody connects
  /// Changes what is sent for a command that isn't of the greeting; true: the connection ends behind it. Set it before
  /// anybody connects; one call at a time.
  std::function<bool(std::string& reply)> meddle;

 private:
  void serve(int socket);
  std::string answer(const std::vector<std::string>& command, bool& greeted);

  int listener_ = -1, port_ = 0;
  std::atomic<bool> ends_ = false;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::vector<int> sockets_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace coppice::test
