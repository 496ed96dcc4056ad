// TimedSocket: a connected socket with a deadline for what it reads and writes.
//
// Belongs to the io thread. A stream as Boost.Beast wants it, so that Beast's composed reads keep to the deadline too.
// (Beast's own tcp_stream closes the socket at a timeout: the client would not get its 408.)
//
// Invariant: an operation ends at most one call of check() after the deadline. check() cancels what is under way. It
// cannot cancel what is done and only not yet reported, but then the next operation fails at once.
#pragma once

#include <algorithm>
#include <boost/asio/async_result.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstddef>
#include <utility>

namespace coppice::server {

class TimedSocket {
 public:
  using Clock = std::chrono::steady_clock;
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type = Socket::executor_type;

  explicit TimedSocket(Socket socket) : socket_(std::move(socket)) {}

  executor_type get_executor() { return socket_.get_executor(); }
  /// For what takes no time: options, shutting down, closing.
  Socket& socket() { return socket_; }

  void arm(double seconds) {
    deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }
  /// No later than that.
  void arm_by(Clock::time_point latest) { deadline_ = std::min(deadline_, latest); }
  void disarm() { deadline_ = Clock::time_point::max(); }
  bool overdue(Clock::time_point now = Clock::now()) const { return now >= deadline_; }

  /// Ends what is overdue; to be called every now and then. True: there may have been something.
  bool check(Clock::time_point now) {
    if (!overdue(now)) return false;
    boost::system::error_code ignored;
    socket_.cancel(ignored);
    return true;
  }

  /// As a socket's; overdue: timed_out, and nothing is read.
  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    const auto read = [](Socket& socket, const Buffers& to, auto done) { socket.async_read_some(to, std::move(done)); };
    return in_time(read, buffers, std::forward<Token>(token));
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    const auto write = [](Socket& socket, const Buffers& from, auto done) {
      socket.async_write_some(from, std::move(done));
    };
    return in_time(write, buffers, std::forward<Token>(token));
  }

 private:
  template <typename Begin, typename Buffers, typename Token>
  auto in_time(Begin begin, const Buffers& buffers, Token&& token) {
    const auto initiate = [this, begin](auto done, const Buffers& b) {
      if (!overdue()) return begin(socket_, b, std::move(done));
      boost::asio::post(socket_.get_executor(), [done = std::move(done)]() mutable {
        std::move(done)(boost::system::error_code(boost::asio::error::timed_out), std::size_t{0});
      });
    };
    return boost::asio::async_initiate<Token, void(boost::system::error_code, std::size_t)>(initiate, token, buffers);
  }

  Socket socket_;
  Clock::time_point deadline_ = Clock::time_point::max();
};

}  // namespace coppice::server
