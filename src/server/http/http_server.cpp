#include "server/http/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <vector>

#include "server/base/request_error.h"
#include "server/http/as_tuple.h"
#include "server/http/http_session.h"
#include "server/http/rethrow.h"

namespace coppice::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kTick{200};
constexpr std::size_t kTurnedAway = 64;  // connections that are told that there are too many, at a time
constexpr int kBacklog = 4096;           // the kernel cuts it to net.core.somaxconn

RequestError too_many_connections() {
  return RequestError::unavailable("Too many connections.");
}

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
  asio::co_spawn(io_, accept(), kRethrow);
  asio::co_spawn(io_, watch_deadlines(), kRethrow);
}

asio::awaitable<void> HttpServer::accept() {
  while (acceptor_.is_open()) {
    auto [error, socket] = co_await acceptor_.async_accept(kTuple);
    if (!acceptor_.is_open()) co_return;
    if (!error) {
      take(std::move(socket));
      continue;
    }
    SPDLOG_WARN("accept: {}", error.message());
    // Out of descriptors, most likely. Those who wait stay in the backlog.
    accept_pause_.expires_after(kTick);
    co_await accept_pause_.async_wait(kTuple);
  }
}

void HttpServer::take(tcp::socket socket) try {
  const bool welcome = sessions_.size() < limits_.max_connections;
  if (sessions_.size() >= limits_.max_connections + kTurnedAway) {
    handler_.refuse(too_many_connections(), "");  // counts it; nobody reads the reply
    return;
  }
  const std::shared_ptr<HttpSession> session(new HttpSession(std::move(socket), limits_, bodies_, handler_),
                                             [this](HttpSession* ended) {
                                               sessions_.erase(ended);
                                               delete ended;
                                             });
  sessions_.insert(session.get());
  if (finishing_) session->finish();
  asio::co_spawn(io_, serve(session, welcome), kRethrow);
} catch (const std::bad_alloc&) {
  SPDLOG_ERROR("a connection is closed: out of memory");
}

/// Owns the session.
asio::awaitable<void> HttpServer::serve(std::shared_ptr<HttpSession> session, bool welcome) {
  co_await (welcome ? session->run() : session->turn_away(too_many_connections()));
}

asio::awaitable<void> HttpServer::watch_deadlines() {
  while (!closed_) {
    tick_.expires_after(kTick);
    co_await tick_.async_wait(kTuple);
    const auto now = HttpSession::Clock::now();
    // Those who keep a connection just in case give way to those who want one now.
    const bool crowded = sessions_.size() > limits_.max_connections - limits_.max_connections / 8;
    for (HttpSession* session : sessions_) {
      session->check_deadline(now);
      if (crowded && session->idle_seconds(now) > limits_.crowded_idle_seconds) session->close();
    }
  }
}

void HttpServer::finish() {
  finishing_ = true;
  for (HttpSession* session : sessions_) session->finish();
}

bool HttpServer::busy() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const HttpSession* session) { return session->busy(); });
}

bool HttpServer::lingering() const {
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const HttpSession* session) { return session->lingering(); });
}

void HttpServer::close() {
  closed_ = true;
  error_code ignored;
  acceptor_.close(ignored);
  tick_.cancel();
  accept_pause_.cancel();
  for (HttpSession* session : sessions_) session->close();
}

}  // namespace coppice::server
