#include "server/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <vector>

#include "server/api_error.h"
#include "server/http_session.h"
#include "server/log_failure.h"

namespace coppice::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::milliseconds kTick{200};
constexpr std::size_t kTurnedAway = 64;  // connections that are told that there are too many, at a time
constexpr int kBacklog = 4096;           // the kernel cuts it to net.core.somaxconn

}  // namespace

HttpServer::HttpServer(asio::io_context& io, HttpLimits limits, HttpHandler& handler)
    : io_(io),
      limits_(limits),
      bodies_(limits.body_budget(), limits.small_body_bytes),
      handler_(handler),
      acceptor_(io),
      tick_(io),
      accept_pause_(io) {}

HttpServer::~HttpServer() = default;

void HttpServer::listen(const std::string& host, std::uint16_t port) {
  error_code error;
  tcp::resolver resolver(io_);
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty())
    throw ListenError(fmt::format("Cannot resolve the host '{}': {}.", host, error.message()));
  const tcp::endpoint endpoint = found.begin()->endpoint();
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(kBacklog, error);
  if (error == asio::error::address_in_use)
    throw ListenError(fmt::format("Port {} on {} is already in use: choose another one with --port.", port, host));
  if (error) throw ListenError(fmt::format("Cannot listen on {}:{}: {}.", host, port, error.message()));
}

std::uint16_t HttpServer::port() const {
  return acceptor_.local_endpoint().port();
}

void HttpServer::start() {
  begin_to_accept();
  asio::co_spawn(io_, watch_deadlines(), log_failure_of("deadlines"));
}

void HttpServer::begin_to_accept() {
  try {
    asio::co_spawn(io_, accept(), log_failure_of("accept"));
  } catch (const std::bad_alloc& e) {
    log_failure("accept", e);
  }
}

asio::awaitable<void> HttpServer::accept() {
  struct Mark {
    bool& mark;
    ~Mark() { mark = false; }
  } const mark{accepting_ = true};
  while (acceptor_.is_open()) {
    try {
      auto [error, socket] = co_await acceptor_.async_accept(kTuple);
      if (!acceptor_.is_open()) co_return;
      if (!error) {
        take(std::move(socket));
        continue;
      }
      SPDLOG_WARN("accept: {}", error.message());
    } catch (const std::exception& e) {
      log_failure("accept", e);
    }
    // Out of descriptors or memory, most likely: what waits stays in the backlog, so don't spin.
    co_await sleep_a_tick(accept_pause_);
  }
}

/// Never throws: who waits here must go on.
asio::awaitable<void> HttpServer::sleep_a_tick(asio::steady_timer& timer) {
  try {
    timer.expires_after(kTick);
    co_await timer.async_wait(kTuple);
  } catch (const std::exception& e) {
    log_failure("timer", e);
  }
}

void HttpServer::take(tcp::socket socket) {
  const bool welcome = sessions_.size() < limits_.max_connections;
  if (sessions_.size() >= limits_.max_connections + kTurnedAway) return handler_.refused(503);
  const auto session = std::make_shared<HttpSession>(std::move(socket), limits_, bodies_, handler_);
  sessions_.insert(session);
  if (finishing_) session->finish();
  try {
    asio::co_spawn(io_, serve(session, welcome), log_failure_of("connection"));
  } catch (...) {
    sessions_.erase(session);
    throw;
  }
}

asio::awaitable<void> HttpServer::serve(std::shared_ptr<HttpSession> session, bool welcome) {
  const auto erase = [this, &session](HttpSession*) { sessions_.erase(session); };
  const std::unique_ptr<HttpSession, decltype(erase)> guard(session.get(), erase);
  co_await (welcome ? session->run() : session->turn_away(ApiError::unavailable("Too many connections.")));
}

asio::awaitable<void> HttpServer::watch_deadlines() {
  while (!closed_) {
    co_await sleep_a_tick(tick_);
    // Without memory to register a new socket, Asio drops the coroutine that waits for it.
    if (!accepting_ && acceptor_.is_open()) begin_to_accept();
    const auto now = HttpSession::Clock::now();
    // Those who keep a connection just in case give way to those who want one now.
    const bool crowded = sessions_.size() > limits_.max_connections - limits_.max_connections / 8;
    for (const auto& session : sessions_) {
      session->check_deadline(now);
      if (crowded && session->idle_seconds(now) > limits_.crowded_idle_seconds) session->close();
    }
  }
}

void HttpServer::finish() {
  finishing_ = true;
  for (const auto& session : sessions_) session->finish();
}

bool HttpServer::busy() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) { return session->busy(); });
}

bool HttpServer::lingering() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) { return session->lingering(); });
}

void HttpServer::close() {
  closed_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  tick_.cancel();
  accept_pause_.cancel();
  for (const auto& session : sessions_) session->close();
}

}  // namespace coppice::server
