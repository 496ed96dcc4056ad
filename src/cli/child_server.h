// A `coppice serve` of our own binary as a child process. It never outlives us: the destructor ends it, and the kernel
// does when this process dies in any other way (Ctrl-C, SIGKILL, a crash).
//
// Not thread safe. The thread that makes it must live as long as it does (the kernel watches that thread).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace coppice::cli {

class ChildServer {
 public:
  /// How far a load is: "weights", 0 to 1.
  using Progress = std::function<void(const std::string& stage, double fraction)>;

  /// Runs `coppice serve <arguments>` on a free port of 127.0.0.1, with its output in the file `log`, and waits until
  /// it answers. Throws std::runtime_error, with the log's last line, if it ends, or gets no further for two minutes.
  ChildServer(std::vector<std::string> arguments, const std::filesystem::path& log, const Progress& progress = {});
  ~ChildServer();
  ChildServer(const ChildServer&) = delete;
  ChildServer& operator=(const ChildServer&) = delete;

  std::uint16_t port() const { return port_; }

 private:
  void start(std::vector<std::string> arguments, const std::filesystem::path& log);
  void wait_ready(const std::filesystem::path& log, const Progress& progress);
  void end();

  std::uint16_t port_ = 0;
  pid_t pid_ = -1;  ///< -1: there is no child
};

}  // namespace coppice::cli
