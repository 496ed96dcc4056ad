#include "server/fetch/fetcher.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/vector_body.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/system/system_error.hpp>
#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>

#include "port/turn.h"
#include "server/fetch/url.h"

namespace coppice::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

namespace {

/// Ends one file's fetching. Its text follows "the image".
struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr std::uint32_t kMostHead = 64 << 10;  // bytes
constexpr const char* kTooLong = "took too long to come";

}  // namespace

struct Fetcher::Tls {
  asio::ssl::context context{asio::ssl::context::tls_client};
};

/// The files of one call, each by a coroutine of one thread.
class Fetcher::Call {
 public:
  Call(const Fetcher& fetcher, std::span<const std::string> urls)
      : fetcher_(fetcher), urls_(urls), files_(urls.size(), std::unexpected(kTooLong)) {}

  std::vector<File> run(const std::function<bool()>& stop) {
    const auto seconds = std::chrono::duration<double>(fetcher_.limits_.seconds);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
    asio::io_context io(1);
    for (int i = 0; i < std::min<int>(kAtOnce, static_cast<int>(urls_.size())); ++i)
      asio::co_spawn(io, lane(), asio::detached);
    // A search for a name can't be broken off, and the end of `io` would wait for it: others have their turns
    // meanwhile.
    while (!io.stopped() && (!over_ || searches_ > 0)) {
      io.run_for(std::chrono::milliseconds(20));
      port::between_steps();
      over_ = over_ || Clock::now() >= end || stop();
    }
    return std::move(files_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Reply = http::response_parser<http::vector_body<std::uint8_t>>;

  /// One file after the other.
  asio::awaitable<void> lane() {
    while (!over_ && next_ < urls_.size()) {
      const std::size_t i = next_++;
      try {
        files_[i] = co_await fetch(urls_[i]);
      } catch (const Refusal& refusal) {
        files_[i] = std::unexpected(refusal.what());
      } catch (const boost::system::system_error& e) {
        files_[i] = std::unexpected(e.code() == http::error::body_limit
                                        ? too_large()
                                        : fmt::format("can't be fetched: {}", e.code().message()));
      }
    }
  }

  asio::awaitable<std::vector<std::uint8_t>> fetch(const std::string& text) {
    auto url = parse_url(text);
    if (!url) throw Refusal("has no http or https URL that can be read");
    for (int redirections = 0;; ++redirections) {
      const auto addresses = co_await addresses_of(*url);
      beast::tcp_stream stream(co_await asio::this_coro::executor);
      co_await stream.async_connect(addresses, asio::use_awaitable);
      Reply reply;
      if (url->tls) {
        asio::ssl::stream<beast::tcp_stream> secure(std::move(stream), fetcher_.tls_->context);
        secure.set_verify_mode(asio::ssl::verify_peer);
        secure.set_verify_callback(asio::ssl::host_name_verification(url->host));
        if (!is_address(url->host)) SSL_set_tlsext_host_name(secure.native_handle(), url->host.c_str());
        co_await secure.async_handshake(asio::ssl::stream_base::client, asio::use_awaitable);
        co_await exchange(secure, *url, reply);
      } else {
        co_await exchange(stream, *url, reply);
      }
      const unsigned status = reply.get().result_int();
      if (status == 200) co_return std::move(reply.get().body());
      if (!is_redirection(status)) throw Refusal(fmt::format("can't be fetched: its server answers {}", status));
      if (redirections == kMostRedirections)
        throw Refusal(fmt::format("is redirected more than {} times", kMostRedirections));
      if (reply.get()[http::field::location].empty())
        throw Refusal("is redirected, and its server doesn't say to where");
      const bool secure = url->tls;
      url = redirected(*url, reply.get()[http::field::location]);
      if (!url || (secure && !url->tls)) throw Refusal("is redirected to where nothing is fetched from");
    }
  }

  /// Of the URL's host, all of which may be connected to.
  asio::awaitable<std::vector<tcp::endpoint>> addresses_of(const Url& url) {
    const MediaHosts& hosts = fetcher_.hosts_;
    if (!hosts.may_say(url.host))
      throw Refusal(
          fmt::format("is at '{}', and this server fetches nothing from there (--allow-media-from)", url.host));
    tcp::resolver resolver(co_await asio::this_coro::executor);
    ++searches_;
    boost::system::error_code error;
    const auto found =
        co_await resolver.async_resolve(url.host, std::to_string(url.port), tcp::resolver::numeric_service,
                                        asio::redirect_error(asio::use_awaitable, error));
    --searches_;
    if (over_) throw Refusal(kTooLong);
    if (error) throw boost::system::system_error(error);
    std::vector<tcp::endpoint> endpoints;
    for (const auto& entry : found) {
      if (!hosts.may_connect(entry.endpoint().address()))
        throw Refusal(fmt::format("is at '{}', which has an address that is not public: nothing is fetched from there",
                                  url.host));
      endpoints.push_back(entry.endpoint());
    }
    co_return endpoints;
  }

  /// The reply's body is read where it is a file.
  template <class Stream>
  asio::awaitable<void> exchange(Stream& stream, const Url& url, Reply& reply) {
    http::request<http::empty_body> request(http::verb::get, url.target, 11);
    request.set(http::field::host, url.authority());
    request.set(http::field::user_agent, "coppice");
    request.set(http::field::accept, "image/*");
    request.set(http::field::accept_encoding, "identity");
    request.set(http::field::connection, "close");
    co_await http::async_write(stream, request, asio::use_awaitable);
    beast::flat_buffer buffer;
    reply.header_limit(kMostHead);
    reply.body_limit(fetcher_.limits_.bytes);
    co_await http::async_read_header(stream, buffer, reply, asio::use_awaitable);
    if (reply.get().result_int() != 200) co_return;
    if (const auto encoding = reply.get()[http::field::content_encoding]; !encoding.empty() && encoding != "identity")
      throw Refusal("comes in an encoding that nobody asked for");
    std::size_t known = 0;
    while (!reply.is_done()) {
      boost::system::error_code error;
      co_await http::async_read_some(stream, buffer, reply, asio::redirect_error(asio::use_awaitable, error));
      const std::size_t now = reply.get().body().size();
      fetched_ += now - known;
      known = now;
      if (fetched_ > fetcher_.limits_.bytes) throw Refusal(too_large());
      if (error) throw boost::system::system_error(error);
    }
  }

  std::string too_large() const {
    return fmt::format("is too large: the images of a request may have {} bytes where they are fetched",
                       fetcher_.limits_.bytes);
  }

  const Fetcher& fetcher_;
  std::span<const std::string> urls_;
  std::vector<File> files_;
  std::size_t next_ = 0;     ///< whose turn it is
  std::size_t fetched_ = 0;  ///< bytes, of all files
  int searches_ = 0;         ///< for names, under way
  bool over_ = false;        ///< nothing is waited for any more
};

Fetcher::Fetcher(MediaHosts hosts, const Limits& limits)
    : hosts_(std::move(hosts)), limits_(limits), tls_(std::make_unique<Tls>()) {
  if (off()) return;
  boost::system::error_code ignored;  // without authorities no certificate is good, and each file says so
  tls_->context.set_default_verify_paths(ignored);
}

Fetcher::~Fetcher() = default;

std::vector<Fetcher::File> Fetcher::fetch(std::span<const std::string> urls, const std::function<bool()>& stop) const {
  return Call(*this, urls).run(stop);
}

}  // namespace coppice::server
