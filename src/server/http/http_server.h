// HttpServer: the listening socket and its connections.
//
// Belongs to the io thread. listen() may be called before that thread runs.
//
// Invariants
//   1. `sessions_` holds exactly the sessions that live; each is owned by its coroutine, serve().
//   2. At most limits.max_connections of them serve. When there are as many, a new one takes the place of the one that
//      has owed the head of a request for longest. Else a few more are told that there are too many; all others are
//      closed at once.
//   3. Bodies that are not prepared yet take at most limits.body_budget() bytes together, besides
//      limits.small_body_bytes each. A client that sends more gets a 503.
//   4. What clients have not taken of their replies has at most limits.max_replies_bytes together, besides the first
//      limits.small_body_bytes of each. Where there is no room for a reply its client gets a 503, or its stream ends.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <vector>

#include "check/thread_role.h"
#include "server/http/http.h"
#include "server/http/http_limits.h"
#include "server/http/waiting_list.h"

namespace coppice::server {

class HttpSession;

/// The address cannot be listened on; what() is a sentence for the operator.
class ListenError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class HttpServer {
 public:
  /// The handler outlives the server.
  HttpServer(boost::asio::io_context& io, HttpLimits limits, HttpHandler& handler);
  ~HttpServer();

  /// Binds and listens on each address of the host ("[::1]" is one, too); connections wait until start(). Port 0 picks
  /// a free one, the same for all. An address that this machine lacks is left out while another is there. Throws
  /// ListenError.
  void listen(const std::string& host, std::uint16_t port);
  std::uint16_t port() const;

  /// Begins to accept connections. Again: goes on with what a lack of memory has ended.
  void start();
  /// One more request on each connection that is busy or new, none on others: idle ones close.
  void finish();
  /// Is a request arriving or being answered?
  bool busy() const;
  /// Is a refused client's answer on its way, which close() could destroy?
  bool lingering() const;
  /// No new connections. Ends everything that still waits. After it no work of this object is left on the io_context.
  void close();

  HttpFigures figures() const;

 private:
  void listen(const boost::asio::ip::tcp::endpoint& endpoint, boost::system::error_code& error);
  boost::asio::awaitable<void> accept(std::size_t listener);
  void take(boost::asio::ip::tcp::socket socket);
  /// Closes the connection that has owed the head of a request for longest. False: there is none.
  bool make_room();
  /// Closes it. False: it is null.
  bool give_up(HttpSession* session);
  boost::asio::awaitable<void> serve(std::shared_ptr<HttpSession> session, bool welcome);
  boost::asio::awaitable<void> watch_deadlines();

  check::ThreadRole io_thread_;
  boost::asio::io_context& io_;
  HttpLimits limits_;
  BodyBudget bodies_;
  BodyBudget replies_;
  WaitingList waiting_;
  HttpHandler& handler_;
  /// One an address. Its timer is for pauses when descriptors are out, which is said once.
  struct Listener {
    boost::asio::ip::tcp::acceptor acceptor;
    boost::asio::steady_timer pause;
    bool accepts;
  };
  std::vector<Listener> listeners_;
  boost::asio::steady_timer tick_;
  std::unordered_set<HttpSession*> sessions_;
  bool finishing_ = false, closed_ = false, watches_ = false;
};

}  // namespace coppice::server
