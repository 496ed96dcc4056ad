#include "pull/web_client.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include <array>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/system/system_error.hpp>
#include <cctype>
#include <chrono>
#include <exception>
#include <optional>
#include <string_view>

#include "pull/names.h"

namespace coppice::pull {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using server::Url;

namespace {

constexpr int kMostRedirections = 8;
constexpr std::uint32_t kMostHead = 64 << 10;  // bytes
constexpr std::size_t kPiece = 256 << 10;      // bytes of a body, at once

std::string small_letters(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

}  // namespace

std::string WebReply::field(const std::string& name) const {
  const auto found = fields.find(name);
  return found == fields.end() ? "" : found->second;
}

struct WebClient::Tls {
  explicit Tls(const Variables& variables) {
    boost::system::error_code error;
    if (const std::string file = variables("SSL_CERT_FILE"); !file.empty()) {
      context.load_verify_file(file, error);
      missing =
          error ? fmt::format("SSL_CERT_FILE names no file of certificates that can be read: '{}'.", shown(file)) : "";
    } else if (const std::string folder = variables("SSL_CERT_DIR"); !folder.empty()) {
      context.add_verify_path(folder, error);
      if (!error) missing.clear();
    }
  }

  asio::ssl::context context{asio::ssl::context::tls_client};
  /// Why there are no authorities; empty: there are.
  std::string missing =
      "This machine has no certificates of authorities (the package ca-certificates): SSL_CERT_FILE may name a file.";
};

/// One request to one server.
class WebClient::Exchange {
 public:
  using Begun = std::function<bool(const WebReply&)>;
  using Take = std::function<void(std::span<const char>)>;

  Exchange(const WebClient& client, const WebRequest& request, const Url& url, bool knows_secret)
      : client_(client), request_(request), url_(url), knows_secret_(knows_secret) {
    reply_.url = url;
  }

  WebReply run(const Begun& begun, const Take& take) {
    asio::io_context io(1);
    std::exception_ptr failure;
    asio::co_spawn(io, exchange(begun, take), [&](const std::exception_ptr& thrown) { failure = thrown; });
    io.run();
    if (failure) std::rethrow_exception(failure);
    return std::move(reply_);
  }

  /// How far it came: somebody took the connection; the server may be asked.
  enum class Stage : std::uint8_t { kNone, kConnected, kOpen };
  Stage stage() const { return stage_; }

 private:
  auto idle_time() const {
    return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(client_.idle_seconds_));
  }

  asio::awaitable<void> exchange(const Begun& begun, const Take& take) {
    const std::optional<Proxy> proxy = proxy_for(url_, client_.variables_);
    const Url& next = proxy ? proxy->at : url_;
    tcp::resolver resolver(co_await asio::this_coro::executor);
    const auto found = co_await resolver.async_resolve(next.host, std::to_string(next.port),
                                                       tcp::resolver::numeric_service, asio::use_awaitable);
    beast::tcp_stream stream(co_await asio::this_coro::executor);
    stream.expires_after(idle_time());
    co_await stream.async_connect(found, asio::use_awaitable);
    stage_ = Stage::kConnected;
    if (!url_.tls) co_return co_await talk(stream, stream, proxy, begun, take);
    if (!client_.tls_->missing.empty()) throw WebFailure(client_.tls_->missing, false);
    if (proxy) co_await open_tunnel(stream, *proxy);
    asio::ssl::stream<beast::tcp_stream> secure(std::move(stream), client_.tls_->context);
    secure.set_verify_mode(asio::ssl::verify_peer);
    secure.set_verify_callback(asio::ssl::host_name_verification(url_.host));
    if (!server::is_address(url_.host)) SSL_set_tlsext_host_name(secure.native_handle(), url_.host.c_str());
    co_await secure.async_handshake(asio::ssl::stream_base::client, asio::use_awaitable);
    co_await talk(secure, secure.next_layer(), std::nullopt, begun, take);
  }

  /// After it the proxy's connection is one to the server.
  asio::awaitable<void> open_tunnel(beast::tcp_stream& stream, const Proxy& proxy) {
    const std::string host = url_.host.contains(':') ? "[" + url_.host + "]" : url_.host;
    const std::string target = fmt::format("{}:{}", host, url_.port);
    http::request<http::empty_body> request(http::verb::connect, target, 11);
    request.set(http::field::host, target);
    request.set(http::field::user_agent, "coppice");
    if (!proxy.authorization.empty()) request.set(http::field::proxy_authorization, proxy.authorization);
    co_await http::async_write(stream, request, asio::use_awaitable);
    http::response_parser<http::empty_body> answer;
    answer.skip(true);
    answer.header_limit(kMostHead);
    beast::flat_buffer buffer;
    co_await http::async_read_header(stream, buffer, answer, asio::use_awaitable);
    if (const unsigned status = answer.get().result_int(); status / 100 != 2)
      throw WebFailure(
          fmt::format("The proxy {} doesn't let this through: it answers {}.", proxy.at.authority(), status),
          status >= 500 && client_.answered_);  // as if the server were asked without it, and no way led there
  }

  /// `lowest`: the stream that has the time limit.
  template <class Stream>
  asio::awaitable<void> talk(Stream& stream, beast::tcp_stream& lowest, std::optional<Proxy> proxy, const Begun& begun,
                             const Take& take) {
    stage_ = Stage::kOpen;
    http::request<http::empty_body> request(http::string_to_verb(request_.method),
                                            proxy ? "http://" + url_.authority() + url_.target : url_.target, 11);
    request.set(http::field::host, url_.authority());
    request.set(http::field::user_agent, "coppice");
    request.set(http::field::accept_encoding, "identity");
    request.set(http::field::connection, "close");
    for (const auto& [name, value] : request_.fields) request.set(name, value);
    if (knows_secret_ && !request_.authorization.empty())
      request.set(http::field::authorization, request_.authorization);
    if (proxy && !proxy->authorization.empty()) request.set(http::field::proxy_authorization, proxy->authorization);
    co_await http::async_write(stream, request, asio::use_awaitable);

    http::response_parser<http::buffer_body> parser;
    parser.header_limit(kMostHead);
    parser.body_limit(boost::none);
    parser.skip(std::string_view(request_.method) == "HEAD");
    beast::flat_buffer buffer;
    lowest.expires_after(idle_time());
    co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
    reply_.status = parser.get().result_int();
    for (const auto& field : parser.get())
      reply_.fields.insert_or_assign(small_letters(field.name_string()), field.value());
    const bool taken = !server::is_redirection(reply_.status) && begun(reply_) && take;
    std::vector<char> piece(kPiece);
    while (!parser.is_done()) {
      auto& body = parser.get().body();
      body.data = piece.data();
      body.size = piece.size();
      lowest.expires_after(idle_time());
      boost::system::error_code error;
      co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
      const std::span<const char> got(piece.data(), piece.size() - body.size);
      if (taken) {
        take(got);
      } else {
        reply_.body.append(got.data(), got.size());
        if (reply_.body.size() > kMostBody) throw WebFailure(url_.host + " answers with too much.", false);
      }
      if (error && error != http::error::need_buffer) throw boost::system::system_error(error);
    }
  }

  const WebClient& client_;
  const WebRequest& request_;
  const Url& url_;
  const bool knows_secret_;
  Stage stage_ = Stage::kNone;
  WebReply reply_;
};

WebClient::WebClient(Variables variables, double idle_seconds)
    : variables_(std::move(variables)), idle_seconds_(idle_seconds), tls_(std::make_unique<Tls>(variables_)) {}

WebClient::~WebClient() = default;

WebFailure WebClient::failure_of(const Exchange& exchange, const Url& url, const std::string& way,
                                 const boost::system::error_code& error) const {
  using Stage = Exchange::Stage;
  const std::string who = url.authority();
  const bool reached = exchange.stage() != Stage::kNone, again = reached || answered_;
  const bool unreachable = !reached && !answered_ && way.empty();
  if (error == beast::error::timeout)
    return {reached ? fmt::format("{}{} was silent for {:g} s.", who, way, idle_seconds_)
                    : fmt::format("{} can't be asked{}: nobody answered for {:g} s.", who, way, idle_seconds_),
            again, unreachable};
  // Before the server may be asked, what TLS says is about its certificate, or that it speaks something else.
  if (!reached || (exchange.stage() == Stage::kConnected && error.category() == asio::error::get_ssl_category()))
    return {fmt::format("{} can't be asked{}: {}.", who, way, error.message()), again && !reached, unreachable};
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message ||
                     error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  if (error.category() == http::make_error_code(http::error::bad_version).category() && !ended)
    return {fmt::format("{}{} answers with something else than HTTP: {}.", who, way, error.message()), false};
  return {fmt::format("The connection to {}{} broke off{}.", who, way, ended ? "" : ": " + error.message()), true};
}

WebReply WebClient::ask(const WebRequest& request, const std::function<bool(const WebReply&)>& begun,
                        const std::function<void(std::span<const char>)>& take) {
  const Url first = request.url;
  Url url = request.url;
  const auto same_server = [](const Url& a, const Url& b) {
    return a.tls == b.tls && a.host == b.host && a.port == b.port;
  };
  for (int redirections = 0;; ++redirections) {
    WebReply reply;
    Exchange exchange(*this, request, url, same_server(url, first));
    try {
      reply = exchange.run(begun, take);
      answered_ = true;
    } catch (const boost::system::system_error& e) {
      const std::optional<Proxy> proxy = proxy_for(url, variables_);
      throw failure_of(exchange, url, proxy ? " through the proxy " + proxy->at.authority() : "", e.code());
    }
    if (!server::is_redirection(reply.status)) return reply;
    const auto next = server::redirected(url, reply.field("location"));
    if (!request.leaves_host && (!next || !same_server(*next, url))) return reply;
    if (!next || (url.tls && !next->tls))
      throw WebFailure(fmt::format("{} redirects to where nothing is fetched from.", url.authority()), false);
    if (redirections == kMostRedirections)
      throw WebFailure(fmt::format("{} redirects too often.", first.authority()), false);
    url = *next;
  }
}

}  // namespace coppice::pull
