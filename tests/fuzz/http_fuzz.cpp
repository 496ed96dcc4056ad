// Bytes of a connection: through the session, the routes and the request reader to a scripted model and back.
//
// An input's first byte is the size of the pieces that the rest arrives in; 0: all at once. (At most kMaxPieces.) The other end of the
// session's socket is ours, in this process; everything runs on this thread but the API's worker, which is waited for, so
// that an input always takes the same way.
#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <future>
#include <memory>
#include <mutex>
#include <string_view>

#include "fuzz/fuzz.h"
#include "server/api.h"
#include "server/fake_model.h"
#include "server/http_session.h"

namespace coppice::testing {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxPieces = 64;

/// The server logs errors only when it is at fault: an exception nobody meant to throw.
class ErrorsAreFindings final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level >= spdlog::level::err) finding(std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
};

struct World {
  World() : api({.names = {"the-model", "alias"}, .ping_seconds = 0}, hub, workers) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("fuzz", std::make_shared<ErrorsAreFindings>()));
    spdlog::set_level(spdlog::level::err);
    limits.max_body_bytes = 32768;
    limits.max_bodies_bytes = 0;
  }

  /// Until nothing is left to do but to wait for bytes.
  void settle() {
    for (int idle_rounds = 0; idle_rounds < 2;) {
      idle_rounds = io.poll() == 0 ? idle_rounds + 1 : 0;
      std::promise<void> done;
      asio::post(workers, [&done] { done.set_value(); });
      done.get_future().wait();
    }
  }

  asio::thread_pool workers{1};
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  server::EventHub hub{io};
  server::Api api;
  server::HttpLimits limits;
  server::BodyBudget bodies{std::size_t{1} << 20};
};

/// Takes what the server wrote, which must look like replies.
void read_replies(int fd, bool& first) {
  std::array<char, 65536> bytes{};
  for (ssize_t n; (n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0; first = false) {
    const std::string_view text(bytes.data(), static_cast<std::size_t>(n));
    if (first && !text.starts_with("HTTP/1.1 ")) finding("a reply begins with " + std::string(text.substr(0, 40)));
  }
}

void connection(World& world, std::string_view bytes, std::size_t piece) {
  world.api.set_ready(std::make_shared<FakeModel>(world.hub.sink(), words({"one", "two"})));
  std::array<int, 2> fds{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) != 0) finding("no socket");
  asio::ip::tcp::socket socket(world.io);
  socket.assign(asio::ip::tcp::v4(), fds[0]);
  const auto session = std::make_shared<server::HttpSession>(std::move(socket), world.limits, world.bodies, world.api);
  bool ended = false;
  asio::co_spawn(world.io, session->run(), [&ended](const std::exception_ptr& failure) {
    if (failure) finding("run() threw");
    ended = true;
  });

  bool first = true;
  while (!bytes.empty() && !ended) {
    const std::string_view part = bytes.substr(0, piece);
    const ssize_t n = ::send(fds[1], part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    world.settle();
    read_replies(fds[1], first);
    if (n < 0) break;
  }
  ::close(fds[1]);
  world.settle();
  if (!ended) finding("the session outlives its client");
  if (world.bodies.used() != 0) finding("a body was not given back");
  if (world.hub.open() != 0) finding("a request was not cancelled");
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static coppice::testing::World world;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t piece = data[0] == 0 ? size : std::max<std::size_t>(data[0], size / coppice::testing::kMaxPieces);
  coppice::testing::connection(world, bytes.substr(1), piece);
  return 0;
}
