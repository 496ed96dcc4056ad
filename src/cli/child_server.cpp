#include "cli/child_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

namespace coppice::cli {
namespace {

/// A port that was free a moment ago. Somebody else may take it before the server does; the server then ends
/// with a message that wait_ready() passes on.
std::uint16_t free_port() {
  boost::asio::io_context context;
  using boost::asio::ip::tcp;
  tcp::acceptor acceptor(context, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  return acceptor.local_endpoint().port();
}

/// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_server(pid_t parent, int log, char* const* argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // the parent died before prctl
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execv("/proc/self/exe", argv);
  ::_exit(127);
}

}  // namespace

std::filesystem::path own_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

ChildServer::ChildServer(std::vector<std::string> arguments, std::filesystem::path log) : log_(std::move(log)) {
  endpoint_.port = free_port();
  arguments.insert(arguments.begin(), {own_path().string(), "serve"});
  for (const std::string& last :
       {std::string("--host"), endpoint_.host, std::string("--port"), std::to_string(endpoint_.port)}) {
    arguments.push_back(last);
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  const int file = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) throw std::runtime_error(fmt::format("cannot write {}: {}", log_.string(), std::strerror(errno)));
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become_server(parent, file, argv.data());
  ::close(file);
  if (pid_ < 0) throw std::runtime_error(fmt::format("cannot start the server: {}", std::strerror(errno)));
}

ChildServer::~ChildServer() {
  if (!running()) return;
  ::kill(pid_, SIGTERM);
  for (int tenths = 0; tenths < 100 && running(); ++tenths) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  if (running()) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

bool ChildServer::running() {
  if (pid_ > 0 && ::waitpid(pid_, nullptr, WNOHANG) != 0) pid_ = -1;
  return pid_ > 0;
}

void ChildServer::wait_ready(std::chrono::seconds timeout, const std::function<void()>& waiting) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (http_status(endpoint_, "/health") != 200) {
    if (!running()) throw std::runtime_error("the server ended while starting: " + last_log_line());
    if (std::chrono::steady_clock::now() > end) {
      throw std::runtime_error(
          fmt::format("the server was not ready within {} s: {}", timeout.count(), last_log_line()));
    }
    waiting();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::string ChildServer::last_log_line() const {
  std::ifstream in(log_);
  std::string last = "it said nothing";
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) last = line;
  }
  return fmt::format("{} (log: {})", last, log_.string());
}

}  // namespace coppice::cli
