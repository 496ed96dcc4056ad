// A `coppice serve` of our own binary as a child process, which never outlives us: it is ended by the
// destructor, and by the kernel if this process dies in any other way (Ctrl-C, SIGKILL, a crash).
//
// Not thread safe. The thread that makes it must live as long as it does (the kernel watches that thread).
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "cli/http_client.h"

namespace coppice::cli {

class ChildServer {
 public:
  /// Runs `coppice serve <arguments> --host 127.0.0.1 --port <a free one>`, its output into the file `log`.
  /// Throws std::runtime_error.
  ChildServer(std::vector<std::string> arguments, std::filesystem::path log);
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  /// Waits until /health answers 200, calling `waiting` meanwhile. Throws std::runtime_error when the server
  /// ended or the time is up; the message holds the last line of its log.
  void wait_ready(std::chrono::seconds timeout, const std::function<void()>& waiting);

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  bool running();
  std::string last_log_line() const;

  Endpoint endpoint_;
  std::filesystem::path log_;
  pid_t pid_ = -1;  ///< -1 when it has been waited for
};

/// Path of the running program.
std::filesystem::path own_path();

}  // namespace coppice::cli
