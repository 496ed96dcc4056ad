#include "server/http/http_session.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <new>
#include <utility>

#include "check/assert.h"
#include "port/sockets.h"
#include "server/http/as_tuple.h"
#include "server/http/http_head.h"

namespace coppice::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t kReadBytes = 4096;
constexpr std::size_t kMaxPipelined = std::size_t{64} << 10;
constexpr std::size_t kMaxLinger = std::size_t{64} << 20;

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 64> text{};
  const std::size_t n = std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &utc);
  return {text.data(), n};
}

/// Of a client that is gone already: none in particular.
asio::ip::address remote_address(const asio::ip::tcp::socket& socket) {
  error_code error;
  return socket.remote_endpoint(error).address();
}

}  // namespace

HttpSession::HttpSession(asio::ip::tcp::socket socket, const HttpLimits& limits, const Shared& shared,
                         HttpHandler& handler)
    : socket_(std::move(socket)),
      limits_(limits),
      bodies_(shared.bodies),
      replies_(shared.replies),
      waiting_(shared.waiting, *this, remote_address(socket_.socket())),
      handler_(handler),
      // A head that is too long, or a chunk's, must not fill the memory before anybody sees its end.
      buffer_(std::max(limits.max_header_bytes, kMaxPipelined) + kReadBytes) {
  error_code ignored;
  auto& raw = socket_.socket();
  raw.set_option(asio::ip::tcp::no_delay(true), ignored);
  port::notice_dead_peer(raw.native_handle(), limits_.write_seconds);
  if (limits_.send_buffer_bytes > 0)
    raw.set_option(asio::socket_base::send_buffer_size(limits_.send_buffer_bytes), ignored);
}

asio::awaitable<void> HttpSession::run() {
  COPPICE_ASSERT(io_thread_.mine());
  try {
    while (co_await serve_one() && !finishing_) {
    }
  } catch (const std::bad_alloc&) {
    SPDLOG_ERROR("a connection is closed: out of memory");
  } catch (const std::exception& e) {
    spdlog::debug("connection closed: {}", e.what());
  }
  close();
}

asio::awaitable<void> HttpSession::turn_away(RequestError error) {
  COPPICE_ASSERT(io_thread_.mine());
  try {
    co_await refuse(error);
  } catch (const std::exception& e) {
    spdlog::debug("connection closed: {}", e.what());
  }
  close();
}

asio::awaitable<bool> HttpSession::serve_one() {
  head_only_ = false;
  payer_ = waiting_.address();
  method_.clear();
  path_.clear();
  fields_.clear();
  id_.clear();
  skip_empty_lines();
  if (buffer_.size() == 0 && !co_await wait_for_request()) co_return false;
  busy_ = true;
  waiting_.owe_head();
  fresh_ = false;
  begun_ = streaming_ = complete_ = false;
  reserved_.reset();

  auto request = co_await read_request();
  socket_.disarm();
  if (!request && request.error() && request.error()->status() == 408 && finishing_)
    request = std::unexpected(RequestError::shutting_down());
  if (!request) {
    if (request.error()) co_await refuse(*request.error());
    co_return false;
  }

  waiting_.leave();
  using namespace asio::experimental::awaitable_operators;
  co_await (respond(*request) || watch());
  reserved_.reset();
  co_return complete_&& keep_alive_;
}

asio::awaitable<bool> HttpSession::wait_for_request() {
  rest();
  if (buffer_.capacity() > kReadBytes)
    buffer_.shrink_to_fit();  // thousands of idle connections must not hold 64 KiB each
  socket_.arm(limits_.idle_seconds);
  while (buffer_.size() == 0) {
    const auto [error, n] = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kTuple);
    if (error) co_return false;
    buffer_.commit(n);
    skip_empty_lines();
  }
  co_return true;
}

asio::awaitable<std::expected<HttpRequest, std::optional<RequestError>>> HttpSession::read_request() {
  struct Mark {
    bool& mark;
    ~Mark() { mark = false; }
  } const mark{reading_ = true};
  Parser parser;
  arm_reading(limits_.header_seconds);
  parser.header_limit(static_cast<std::uint32_t>(limits_.max_header_bytes));
  parser.body_limit(limits_.max_body_bytes);
  const auto [error, n] = co_await http::async_read_header(socket_, buffer_, parser, kTuple);
  const auto& head = parser.get();
  // Of one that is refused, too: the refusal is in its API's form.
  method_ = request_method(head);
  path_ = request_path(head);
  id_ = request_id(head);
  if (error) co_return std::unexpected(protocol_error(error, socket_.overdue(), limits_));
  head_only_ = head.method() == http::verb::head;
  http10_ = head.version() < 11;

  HttpRequest request;
  try {
    request = read_head(head, limits_);
    request.id = id_;
    handler_.admit(request);
    if (!request.tenant.empty()) payer_ = request.tenant;
    waiting_.wait();
    fields_ = std::move(request.reply_fields);
  } catch (const RequestError& e) {
    fields_ = std::move(request.reply_fields);
    co_return std::unexpected(e);
  }

  if (!http10_ && boost::beast::iequals(head[http::field::expect], "100-continue"))
    co_await write_all("HTTP/1.1 100 Continue\r\n\r\n");
  request.body_charge = BodyBudget::Charge(bodies_, payer_);
  if (const auto body = co_await read_body(parser, request.body_charge); !body) co_return std::unexpected(body.error());

  auto message = parser.release();
  request.body = std::move(message.body());
  keep_alive_ = message.keep_alive();
  co_return request;
}

asio::awaitable<std::expected<void, std::optional<RequestError>>> HttpSession::read_body(Parser& parser,
                                                                                         BodyBudget::Charge& charge) {
  using Seconds = std::chrono::duration<double>;
  const auto begin = Clock::now();
  arm_reading(limits_.body_seconds);
  std::size_t piece_end = limits_.small_body_bytes;
  parser.eager(true);
  while (!parser.is_done()) {
    const auto [error, n] = co_await http::async_read_some(socket_, buffer_, parser, kTuple);
    if (error) co_return std::unexpected(protocol_error(error, socket_.overdue(), limits_));
    const std::size_t size = parser.get().body().size();
    if (!charge.raise(size))
      co_return std::unexpected(RequestError::unavailable("The bodies of other requests take all the room there is."));
    if (size < piece_end) continue;
    // What follows takes room that others want: the client must not hold it without sending on.
    piece_end = size + limits_.small_body_bytes;
    const double left = limits_.body_seconds - Seconds(Clock::now() - begin).count();
    arm_reading(std::min(left, limits_.body_piece_seconds));
  }
  co_return std::expected<void, std::optional<RequestError>>();
}

asio::awaitable<void> HttpSession::refuse(const RequestError& error) {
  keep_alive_ = false;
  begun_ = streaming_ = complete_ = false;
  if (id_.empty()) id_ = new_request_id();
  RequestError named = error;
  named.set_request_id(id_);
  co_await send(handler_.refuse(named, method_, path_));
  rest();
  co_await linger();
}

/// The rest of a refused request must be read before closing, or the reset that the kernel sends for unread
/// bytes destroys our reply on its way.
asio::awaitable<void> HttpSession::linger() {
  lingering_ = true;
  error_code ignored;
  socket_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  socket_.arm(limits_.linger_seconds);
  std::array<char, kReadBytes> sink{};
  for (std::size_t total = 0; total < kMaxLinger;) {
    const auto [error, n] = co_await socket_.async_read_some(asio::buffer(sink), kTuple);
    if (error) co_return;
    total += n;
  }
}

/// Never throws: the operator that runs it beside watch() would wait for a success of the other.
asio::awaitable<void> HttpSession::respond(HttpRequest& request) {
  struct Cut {
    ~Cut() {
      error_code ignored;
      if (session != nullptr) session->socket_.socket().close(ignored);
    }
    HttpSession* session;
  } cut{this};  // this frame goes in the middle where asio finds no memory: watch() would wait for a client that waits
  try {
    co_await handler_.handle(request, *this);
  } catch (const std::exception& e) {
    spdlog::debug("reply not finished: {}", e.what());
    complete_ = false;
  }
  cut.session = nullptr;
}

/// Returns when the client is gone, or sends so much ahead of its turn that we could not read on to see it go.
asio::awaitable<void> HttpSession::watch() {
  BodyBudget::Charge ahead(bodies_, payer_);
  while (buffer_.size() < kMaxPipelined && ahead.raise(std::max(ahead.bytes(), buffer_.size()))) {
    const auto [error, n] = co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kTuple);
    buffer_.commit(n);
    if (error) co_return;
  }
  spdlog::debug("connection closed: {} bytes sent ahead of their turn", buffer_.size());
}

// Who takes a byte now and then would hold it for ever without the limit.
asio::awaitable<void> HttpSession::write_all(std::string_view bytes, std::string_view more, std::string_view end) {
  const std::array buffers{asio::buffer(bytes), asio::buffer(more), asio::buffer(end)};
  if (asio::buffer_size(buffers) == 0) co_return;
  socket_.arm(limits_.write_seconds + static_cast<double>(asio::buffer_size(buffers)) / limits_.slowest_reader);
  co_await asio::async_write(socket_, buffers, asio::use_awaitable);
  socket_.disarm();
}

std::string HttpSession::head(int status, std::string_view content_type, const Reply* reply) const {
  std::string out =
      fmt::format("HTTP/1.1 {} {}\r\nServer: coppice\r\nDate: {}\r\nX-Content-Type-Options: nosniff\r\n", status,
                  std::string(http::obsolete_reason(static_cast<http::status>(status))), http_date());
  if (!content_type.empty()) out += fmt::format("Content-Type: {}\r\n", content_type);
  if (reply != nullptr) {
    out += fmt::format("Content-Length: {}\r\n", reply->body.size());
    for (const auto& [name, value] : reply->headers) out += fmt::format("{}: {}\r\n", name, value);
  } else {
    out += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
    if (!http10_) out += "Transfer-Encoding: chunked\r\n";
  }
  out += fmt::format("X-Request-Id: {0}\r\nRequest-Id: {0}\r\n", id_) + fields_;  // OpenAI's name, Anthropic's
  const bool stays = keep_alive_ && !finishing_;
  return out + (stays ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n");
}

void HttpSession::reserve(std::size_t bytes) {
  COPPICE_ASSERT(io_thread_.mine());
  if (!reserved_) reserved_.emplace(replies_, payer_);
  if (!reserved_->raise(bytes))
    throw RequestError::unavailable("Replies that others don't read take all the room there is.");
}

asio::awaitable<void> HttpSession::send(Reply reply) {
  COPPICE_ASSERT(io_thread_.mine() && !begun_);
  reserve(std::max(reserved_ ? reserved_->bytes() : 0, reply.body.size()));
  const std::string head = this->head(reply.status, reply.content_type, &reply);
  begun_ = true;
  co_await write_all(head, head_only_ ? std::string_view() : reply.body);
  complete_ = true;
}

asio::awaitable<void> HttpSession::begin_stream() {
  COPPICE_ASSERT(io_thread_.mine() && !begun_);
  if (http10_) keep_alive_ = false;  // the end of the connection is the only end it knows
  begun_ = true;
  co_await write_all(head(200, "text/event-stream; charset=utf-8", nullptr));
  streaming_ = true;
}

asio::awaitable<void> HttpSession::write(std::string_view events) {
  COPPICE_ASSERT(io_thread_.mine());
  if (events.empty() || head_only_) co_return;  // an empty chunk would end the stream
  BodyBudget::Charge charge(replies_, payer_);
  if (!charge.raise(events.size()))
    throw RequestError::unavailable("Replies that others don't read take all the room there is.");
  streaming_ = false;
  const std::string size = http10_ ? "" : fmt::format("{:x}\r\n", events.size());
  co_await write_all(size, events, http10_ ? "" : "\r\n");
  streaming_ = true;
}

asio::awaitable<void> HttpSession::end_stream() {
  COPPICE_ASSERT(io_thread_.mine());
  streaming_ = false;
  co_await write_all(http10_ ? "" : "0\r\n\r\n");
  complete_ = true;
}

void HttpSession::check_deadline(Clock::time_point now) {
  COPPICE_ASSERT(io_thread_.mine());
  // Whoever waits sees an error, and may still send a reply.
  if (socket_.check(now)) spdlog::debug("connection timed out");
}

void HttpSession::arm_reading(double seconds) {
  socket_.arm(seconds);
  if (finishing_) hurry();
}

void HttpSession::hurry() {
  const auto time = std::chrono::duration<double>(limits_.last_request_seconds);
  if (!last_moment_) last_moment_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(time);
  socket_.arm_by(*last_moment_);
}

/// Some clients send a line end behind a body, which its length does not count (RFC 9112, 2.2).
void HttpSession::skip_empty_lines() {
  const auto bytes = buffer_.data();
  const std::string_view text(static_cast<const char*>(bytes.data()), bytes.size());
  buffer_.consume(std::min(text.find_first_not_of("\r\n"), text.size()));
}

void HttpSession::rest() {
  busy_ = false;
  idle_since_ = Clock::now();
  if (!fresh_) waiting_.wait();
}

double HttpSession::idle_seconds(Clock::time_point now) const {
  COPPICE_ASSERT(io_thread_.mine());
  return busy_ ? 0 : std::chrono::duration<double>(now - idle_since_).count();
}

void HttpSession::finish() {
  COPPICE_ASSERT(io_thread_.mine());
  finishing_ = true;
  if (reading_) hurry();
  if (!busy_ && !fresh_ && !lingering_) close();
}

void HttpSession::close() {
  COPPICE_ASSERT(io_thread_.mine());
  waiting_.leave();
  error_code ignored;
  socket_.socket().close(ignored);
}

}  // namespace coppice::server
