// ServerWorld: the server without its listening socket, for fuzz targets: sessions on socket pairs whose other ends are
// ours, in this process. Everything runs on the caller's thread but the API's workers, which are waited for, so that an
// input always takes the same way.
#pragma once

#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <future>
#include <limits>
#include <memory>
#include <mutex>
#include <string>

#include "fuzz/fuzz.h"
#include "server/api/api.h"
#include "server/http/http_session.h"

namespace coppice::testing {

/// The server logs errors only when it is at fault: an exception nobody meant to throw.
class ErrorsAreFindings final : public spdlog::sinks::base_sink<std::mutex> {
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (message.level >= spdlog::level::err) finding(std::string(message.payload.data(), message.payload.size()));
  }
  void flush_() override {}
};

struct ServerWorld {
  ServerWorld()
      : api({.names = {"the-model", "alias"}, .ping_seconds = 0, .hosts = "*"}, hub, worker, {compiling, compiling},
            viewing) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("fuzz", std::make_shared<ErrorsAreFindings>()));
    spdlog::set_level(spdlog::level::err);
    limits.max_body_bytes = 32768;
    limits.max_bodies_bytes = 0;
  }

  /// Until nothing is left to do but to wait for bytes.
  void settle() {
    for (int idle_rounds = 0; idle_rounds < 2;) {
      idle_rounds = io.poll() == 0 ? idle_rounds + 1 : 0;
      for (server::WorkQueue* queue : {&worker, &compiling, &viewing}) {
        std::promise<void> done;
        queue->push({}, std::numeric_limits<std::size_t>::max(), [&done] {
          done.set_value();
          return true;
        });
        done.get_future().wait();
      }
    }
  }
  /// The same when no request has come since: then the workers, whose threads are slow to wake, have nothing to do.
  void settle_without_worker() {
    for (int idle_rounds = 0; idle_rounds < 2;) idle_rounds = io.poll() == 0 ? idle_rounds + 1 : 0;
  }

  struct Peer {
    int fd;                       ///< our end, which the caller closes
    std::shared_ptr<bool> ended;  ///< the session is over
  };
  Peer connect() {
    std::array<int, 2> fds{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds.data()) != 0) finding("no socket");
    boost::asio::ip::tcp::socket socket(io);
    socket.assign(boost::asio::ip::tcp::v4(), fds[0]);
    const auto session = std::make_shared<server::HttpSession>(
        std::move(socket), limits, server::HttpSession::Shared{bodies, replies, waiting}, api);
    auto ended = std::make_shared<bool>(false);
    boost::asio::co_spawn(io, session->run(), [session, ended](const std::exception_ptr& failure) {
      if (failure) finding("run() threw");
      *ended = true;
    });
    return {fds[1], ended};
  }

  server::WorkQueue worker, compiling, viewing;
  boost::asio::io_context io{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work = boost::asio::make_work_guard(io);
  server::EventHub hub{io};
  server::Api api;
  server::HttpLimits limits;
  server::BodyBudget bodies{std::size_t{1} << 20, 1024};
  server::BodyBudget replies{std::size_t{1} << 20, 1024};
  server::WaitingList waiting;
};

}  // namespace coppice::testing
