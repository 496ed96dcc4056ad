// HttpSession: one connection: reads requests, hands them to the handler, writes replies, one after the other.
//
// Belongs to the io thread. Kept alive by its own coroutine, run().
//
// While a handler works the session reads on. So it learns at once that the client went away, and cancels the handler's
// coroutine. Pipelined requests wait in `buffer_`; a client that sends more than it holds is cut off.
//
// Invariants
//   1. At most one write is in flight; so is at most one read.
//   2. A reply that did not end as it should (`complete_`) closes the connection.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <expected>
#include <optional>
#include <string>

#include "check/thread_role.h"
#include "server/base/request_error.h"
#include "server/http/http.h"
#include "server/http/http_limits.h"
#include "server/http/timed_socket.h"
#include "server/http/waiting_list.h"

namespace coppice::server {

class HttpSession final : public ReplyWriter {
 public:
  using Clock = TimedSocket::Clock;

  /// What all connections share. Outlives them.
  struct Shared {
    BodyBudget& bodies;   ///< that arrive
    BodyBudget& replies;  ///< that clients haven't taken
    WaitingList& waiting;
  };
  /// `limits` and `handler` outlive the session.
  HttpSession(boost::asio::ip::tcp::socket socket, const HttpLimits& limits, const Shared& shared,
              HttpHandler& handler);

  /// Serves until either side closes. Never throws. REQUIRES: this lives as long as the coroutine.
  boost::asio::awaitable<void> run();
  /// In place of run(): answers whatever is asked with `error`.
  boost::asio::awaitable<void> turn_away(RequestError error);

  /// How long nothing was asked; 0 while busy.
  double idle_seconds(Clock::time_point now) const;
  /// Ends what this connection waits for when it is overdue; called every now and then.
  void check_deadline(Clock::time_point now);
  /// No further request on this connection. An idle one closes at once; a new one may still get its first request,
  /// which may be on its way. A request that is not complete must be so within limits.last_request_seconds, from now or
  /// from its first byte.
  void finish();
  /// Is a request arriving or being answered?
  bool busy() const { return busy_; }
  /// A client was refused, and may still be sending: closing now would destroy its answer.
  bool lingering() const { return lingering_; }
  /// Closes at once.
  void close();
  const WaitingList::Entry& waiting() const { return waiting_; }

  boost::asio::awaitable<void> send(Reply reply) override;
  void reserve(std::size_t bytes) override;
  boost::asio::awaitable<void> begin_stream() override;
  boost::asio::awaitable<void> write(std::string_view events) override;
  boost::asio::awaitable<void> end_stream() override;
  bool begun() const override { return begun_; }
  bool streaming() const override { return streaming_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  boost::asio::awaitable<bool> serve_one();
  /// For a request's first byte. False: the client left, or was idle for too long.
  boost::asio::awaitable<bool> wait_for_request();
  /// Without a request: the reply to what could not be read; none: nobody is there to read it.
  boost::asio::awaitable<std::expected<HttpRequest, std::optional<RequestError>>> read_request();
  /// Of the request whose head was parsed; errors as read_request()'s.
  boost::asio::awaitable<std::expected<void, std::optional<RequestError>>> read_body(Parser& parser,
                                                                                     BodyBudget::Charge& charge);
  boost::asio::awaitable<void> refuse(const RequestError& error);
  boost::asio::awaitable<void> respond(HttpRequest& request);
  boost::asio::awaitable<void> watch();
  /// One after the other, without a copy. A client has one time limit for all of it.
  boost::asio::awaitable<void> write_all(std::string_view bytes, std::string_view more = "", std::string_view end = "");
  boost::asio::awaitable<void> linger();
  std::string head(int status, std::string_view content_type, const Reply* reply) const;
  void arm_reading(double seconds);  ///< for a part of a request
  void hurry();                      ///< the request that is arriving: see finish()
  void skip_empty_lines();
  void rest();  ///< no longer busy

  check::ThreadRole io_thread_;
  TimedSocket socket_;
  const HttpLimits& limits_;
  BodyBudget& bodies_;
  BodyBudget& replies_;
  WaitingList::Entry waiting_;
  std::optional<BodyBudget::Charge> reserved_;  ///< of the reply in hand
  HttpHandler& handler_;
  boost::beast::flat_buffer buffer_;  ///< read, not parsed yet; has a largest size
  Clock::time_point idle_since_ = Clock::now();
  /// For the request that arrives when the server ends.
  std::optional<Clock::time_point> last_moment_;
  std::string payer_;        ///< of the request in hand: its key's tenant, or else its address
  std::string method_;       ///< of the request in hand; empty until its head was read
  std::string path_;         ///< of the request in hand; empty until its head was read
  std::string id_;           ///< its HttpRequest::id; empty until its head was read, or it is refused
  std::string fields_;       ///< its HttpRequest::reply_fields
  bool busy_ = false;        ///< see busy()
  bool fresh_ = true;        ///< nothing was asked yet
  bool reading_ = false;     ///< read_request() is under way
  bool lingering_ = false;   ///< see lingering(); up to the end
  bool finishing_ = false;   ///< see finish()
  bool keep_alive_ = false;  ///< of the request in hand
  bool http10_ = false;
  bool head_only_ = false;
  bool begun_ = false, streaming_ = false, complete_ = false;
};

}  // namespace coppice::server
