#include "cli/child_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/json/parse.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "cli/http_client.h"
#include "port/process.h"

namespace coppice::cli {
namespace {

/// A port that was free a moment ago. If somebody else takes it first, the server ends with a message.
std::uint16_t free_port() {
  boost::asio::io_context context;
  using boost::asio::ip::tcp;
  tcp::acceptor acceptor(context, tcp::endpoint(boost::asio::ip::address_v4::loopback(), 0));
  return acceptor.local_endpoint().port();
}

/// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void become_server(const char* program, pid_t parent, int log, char* const* argv) {
  port::end_with_parent();
  ::setpgid(0, 0);                        // Ctrl-C is the parent's affair
  if (::getppid() != parent) ::_exit(1);  // the parent died before that
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::execv(program, argv);
  ::_exit(127);
}

/// Behind a complaint about an option or a variable stands where to read more: of no use here.
std::string last_line(const std::filesystem::path& log) {
  std::ifstream in(log);
  std::string last = "it said nothing";
  for (std::string line; std::getline(in, line);) {
    if (!line.empty() && !line.ends_with("--help' tells all options.")) last = line;
  }
  return fmt::format("{} (log: {})", last, log.string());
}

/// What /health says while a model is loaded: {"status": "loading", "stage": "weights", "progress": 0.4}.
void tell(const std::string& health, const ChildServer::Progress& progress) {
  boost::system::error_code error;
  const auto value = boost::json::parse(health, error);
  const auto* stage = error ? nullptr : value.find_pointer("/stage", error);
  const auto* fraction = stage == nullptr ? nullptr : value.find_pointer("/progress", error);
  if (fraction != nullptr && stage->is_string() && fraction->is_number())
    progress(std::string(stage->get_string()), fraction->to_number<double>());
}

}  // namespace

ChildServer::ChildServer(std::vector<std::string> arguments, const std::filesystem::path& log, const Progress& progress)
    : port_(free_port()) {
  start(std::move(arguments), log);
  try {
    wait_ready(log, progress);
  } catch (...) {
    end();
    throw;
  }
}

ChildServer::~ChildServer() {
  end();
}

void ChildServer::start(std::vector<std::string> arguments, const std::filesystem::path& log) {
  arguments.insert(arguments.begin(), {"coppice", "serve", "--host", "127.0.0.1", "--port", std::to_string(port_)});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) throw std::runtime_error(fmt::format("cannot write {}: {}", log.string(), std::strerror(errno)));
  const pid_t parent = ::getpid();
  const std::string program = port::program_to_run_again();
  // Keys for other servers: whoever asks this one has LLAMA_API_KEY's, or none.
  for (const char* name : {"LLAMA_ARG_API_KEY_FILE", "VLLM_API_KEY"}) ::unsetenv(name);
  pid_ = ::fork();
  if (pid_ == 0) become_server(program.c_str(), parent, file, argv.data());
  ::close(file);
  if (pid_ < 0) throw std::runtime_error(fmt::format("cannot start the server: {}", std::strerror(errno)));
}

void ChildServer::wait_ready(const std::filesystem::path& log, const Progress& progress) {
  using std::chrono::steady_clock;
  static constexpr auto kPatience = std::chrono::minutes(2);
  auto limit = steady_clock::now() + kPatience;
  std::string told;
  for (HttpReply health; (health = http_get(port_, "/health")).status != 200;) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) {
      pid_ = -1;
      throw std::runtime_error("the server ended while starting: " + last_line(log));
    }
    if (health.body != told) {
      limit = steady_clock::now() + kPatience;
      told = health.body;
      if (progress) tell(told, progress);
    }
    if (steady_clock::now() > limit)
      throw std::runtime_error("the server got no further for two minutes: " + last_line(log));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

/// The demo's server has nothing to save.
void ChildServer::end() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace coppice::cli
