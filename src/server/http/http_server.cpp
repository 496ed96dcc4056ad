#include "server/http/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <chrono>
#include <vector>

#include "check/assert.h"
#include "server/base/request_error.h"
#include "server/http/as_tuple.h"
#include "server/http/http_session.h"
#include "server/http/rethrow.h"
#include "server/http/while.h"

namespace coppice::server {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr std::chrono::milliseconds kTick{200};
constexpr std::size_t kTurnedAway = 64;              // connections that are told that there are too many, at a time
constexpr std::chrono::milliseconds kHeadTime{250};  // nobody loses a connection sooner
constexpr int kBacklog = 4096;                       // the kernel cuts it to net.core.somaxconn

/// This machine has no such address.
bool is_lacking(const error_code& error) {
  return error == std::errc::address_not_available || error == std::errc::address_family_not_supported;
}

RequestError too_many_connections() {
  return RequestError::unavailable("Too many connections.");
}

}  // namespace

HttpServer::HttpServer(asio::io_context& io, HttpLimits limits, HttpHandler& handler)
    : io_(io),
      limits_(limits),
      bodies_(limits.body_budget(), limits.small_body_bytes, limits.max_small_bytes),
      replies_(limits.max_replies_bytes, limits.small_body_bytes, limits.max_small_bytes),
      handler_(handler),
      tick_(io) {}

HttpServer::~HttpServer() = default;

void HttpServer::listen(const std::string& host, std::uint16_t port) {
  error_code error;
  tcp::resolver resolver(io_);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  const std::string name = bracketed ? host.substr(1, host.size() - 2) : host;
  const auto found = resolver.resolve(name, std::to_string(port), tcp::resolver::passive, error);
  if (error || found.empty() || name.empty())
    throw ListenError(fmt::format("Cannot resolve the host '{}': {}.", host, error.message()));
  for (const auto& address : found) {
    tcp::endpoint endpoint = address.endpoint();
    if (!listeners_.empty()) endpoint.port(this->port());
    error_code failed;
    listen(endpoint, failed);
    if (failed) error = failed;
    if (failed && !is_lacking(failed)) break;
  }
  if (!error || (!listeners_.empty() && is_lacking(error))) return;
  if (error == asio::error::address_in_use)
    throw ListenError(fmt::format("Port {} on {} is already in use: choose another one with --port.", port, host));
  throw ListenError(fmt::format("Cannot listen on {}:{}: {}.", host, port, error.message()));
}

/// Adds a listener when there is no error.
void HttpServer::listen(const tcp::endpoint& endpoint, error_code& error) {
  const auto is_ours = [&](const Listener& listener) { return listener.acceptor.local_endpoint() == endpoint; };
  if (std::ranges::any_of(listeners_, is_ours)) return;  // a host may have an address twice
  Listener listener{tcp::acceptor(io_), asio::steady_timer(io_), false};
  listener.acceptor.open(endpoint.protocol(), error);
  if (!error) listener.acceptor.set_option(asio::socket_base::reuse_address(true), error);
  // Else the address :: takes those of version 4, too, and a host with both could not have them.
  if (!error && endpoint.address().is_v6() && !endpoint.address().is_unspecified())
    listener.acceptor.set_option(asio::ip::v6_only(true), error);
  if (!error) listener.acceptor.bind(endpoint, error);
  if (!error) listener.acceptor.listen(kBacklog, error);
  if (!error) listeners_.push_back(std::move(listener));
}

std::uint16_t HttpServer::port() const {
  return listeners_.front().acceptor.local_endpoint().port();
}

void HttpServer::start() {
  COPPICE_ASSERT(io_thread_.mine());
  if (closed_) return;
  for (std::size_t i = 0; i < listeners_.size(); ++i)
    if (!listeners_[i].accepts) asio::co_spawn(io_, accept(i), kRethrow);
  if (!watches_) asio::co_spawn(io_, watch_deadlines(), kRethrow);
}

asio::awaitable<void> HttpServer::accept(std::size_t listener) {
  auto& [acceptor, pause, accepts] = listeners_[listener];
  const While running(accepts);
  boost::system::error_code said;
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kTuple);
    if (!acceptor.is_open()) co_return;
    if (!error) {
      said.clear();
      take(std::move(socket));
      continue;
    }
    if (error != said) SPDLOG_WARN("accept: {}", error.message());
    said = error;
    // Out of descriptors, most likely. Those who wait stay in the backlog.
    pause.expires_after(kTick);
    co_await pause.async_wait(kTuple);
  }
}

void HttpServer::take(tcp::socket socket) try {
  const bool welcome = sessions_.size() < limits_.max_connections || make_room();
  if (!welcome && sessions_.size() >= limits_.max_connections + kTurnedAway) {
    handler_.refuse(too_many_connections(), "", "");  // counts it; nobody reads the reply
    return;
  }
  const std::shared_ptr<HttpSession> session(
      new HttpSession(std::move(socket), limits_, {bodies_, replies_, waiting_}, handler_), [this](HttpSession* ended) {
        sessions_.erase(ended);
        delete ended;
      });
  sessions_.insert(session.get());
  give_up(waiting_.one_too_many(session->waiting(), limits_.most_waiting_of_address(),
                                HttpSession::Clock::now() - kHeadTime));
  if (finishing_) session->finish();
  asio::co_spawn(io_, serve(session, welcome), kRethrow);
} catch (const std::bad_alloc&) {
  SPDLOG_ERROR("a connection is closed: out of memory");
}

bool HttpServer::make_room() {
  return give_up(waiting_.longest_owing(HttpSession::Clock::now() - kHeadTime));
}

bool HttpServer::give_up(HttpSession* session) {
  if (session == nullptr) return false;
  handler_.refuse(too_many_connections(), "", "");  // counts it; nobody reads the reply
  session->close();
  return true;
}

/// Owns the session.
asio::awaitable<void> HttpServer::serve(std::shared_ptr<HttpSession> session, bool welcome) {
  co_await (welcome ? session->run() : session->turn_away(too_many_connections()));
}

asio::awaitable<void> HttpServer::watch_deadlines() {
  const While running(watches_);
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

HttpFigures HttpServer::figures() const {
  COPPICE_ASSERT(io_thread_.mine());
  return {.connections = sessions_.size(), .body_bytes = bodies_.used()};
}

void HttpServer::finish() {
  COPPICE_ASSERT(io_thread_.mine());
  finishing_ = true;
  for (HttpSession* session : sessions_) session->finish();
}

bool HttpServer::busy() const {
  COPPICE_ASSERT(io_thread_.mine());
  return std::any_of(sessions_.begin(), sessions_.end(), [](const HttpSession* session) { return session->busy(); });
}

bool HttpServer::lingering() const {
  COPPICE_ASSERT(io_thread_.mine());
  return std::any_of(sessions_.begin(), sessions_.end(),
                     [](const HttpSession* session) { return session->lingering(); });
}

void HttpServer::close() {
  COPPICE_ASSERT(io_thread_.mine());
  closed_ = true;
  error_code ignored;
  for (auto& [acceptor, pause, accepts] : listeners_) {
    acceptor.close(ignored);
    pause.cancel();
  }
  tick_.cancel();
  for (HttpSession* session : sessions_) session->close();
}

}  // namespace coppice::server
