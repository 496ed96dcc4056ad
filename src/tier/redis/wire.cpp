#include "tier/redis/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "port/sockets.h"

namespace coppice::tier {

namespace {

constexpr int kConnectMs = 3000, kWaitMs = 5000;

std::string system_text(int error) {
  return std::generic_category().message(error);
}

std::string tls_text() {
  char text[256] = "the other side ended it";
  if (const unsigned long error = ERR_get_error(); error != 0) ERR_error_string_n(error, text, sizeof text);
  ERR_clear_error();
  return text;
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int number) : number_(number) {}
  Socket(Socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Socket() {
    if (number_ >= 0) ::close(number_);
  }
  int number() const { return number_; }
  /// False: it took too long.
  bool wait(short events, int ms) const {
    pollfd entry{.fd = number_, .events = events, .revents = 0};
    int n = 0;
    do {
      n = ::poll(&entry, 1, ms);
    } while (n < 0 && errno == EINTR);
    return n > 0;
  }

 private:
  int number_ = -1;
};

class PlainWire final : public Wire {
 public:
  explicit PlainWire(Socket socket) : socket_(std::move(socket)) {}

  WireResult<void> send(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const auto n = port::send_quietly(socket_.number(), bytes);
      if (n >= 0) {
        bytes = bytes.subspan(static_cast<std::size_t>(n));
      } else if (errno == EAGAIN) {
        if (!socket_.wait(POLLOUT, kWaitMs)) return std::unexpected("takes nothing");
      } else if (errno != EINTR) {
        return std::unexpected("can't be written to: " + system_text(errno));
      }
    }
    return {};
  }
  WireResult<std::size_t> receive(std::span<std::byte> into) override {
    for (;;) {
      const auto n = ::recv(socket_.number(), into.data(), into.size(), 0);
      if (n > 0) return static_cast<std::size_t>(n);
      if (n == 0) return std::unexpected("ended the connection");
      if (errno == EAGAIN) {
        if (!socket_.wait(POLLIN, kWaitMs)) return std::unexpected("doesn't answer");
      } else if (errno != EINTR) {
        return std::unexpected("can't be read from: " + system_text(errno));
      }
    }
  }

 private:
  Socket socket_;
};

class TlsWire final : public Wire {
 public:
  explicit TlsWire(Socket socket) : socket_(std::move(socket)) {}

  WireResult<void> open(const std::string& host) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (context_ == nullptr || SSL_CTX_set_default_verify_paths(context_.get()) != 1)
      return std::unexpected("can't be trusted: " + tls_text());
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    ssl_.reset(SSL_new(context_.get()));
    if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), socket_.number()) != 1 || !expect(host))
      return std::unexpected("can't be trusted: " + tls_text());
    const auto opened = again([&] { return SSL_connect(ssl_.get()); });
    if (!opened) return std::unexpected("can't be trusted: " + opened.error());
    return {};
  }

  WireResult<void> send(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const int most = static_cast<int>(std::min<std::size_t>(bytes.size(), 1 << 20));
      const auto n = again([&] { return SSL_write(ssl_.get(), bytes.data(), most); });
      if (!n) return std::unexpected("can't be written to: " + n.error());
      bytes = bytes.subspan(static_cast<std::size_t>(*n));
    }
    return {};
  }
  WireResult<std::size_t> receive(std::span<std::byte> into) override {
    const int most = static_cast<int>(std::min<std::size_t>(into.size(), 1 << 20));
    const auto n = again([&] { return SSL_read(ssl_.get(), into.data(), most); });
    if (!n) return std::unexpected("can't be read from: " + n.error());
    return static_cast<std::size_t>(*n);
  }

 private:
  /// Its certificate must be this host's.
  bool expect(const std::string& host) {
    std::array<unsigned char, sizeof(in6_addr)> ignored;
    const bool is_number = ::inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
                           ::inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1;
    if (is_number) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) == 1;
    return SSL_set1_host(ssl_.get(), host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1;
  }

  template <class Call>
  WireResult<int> again(const Call& call) {
    for (;;) {
      const int n = call();
      if (n > 0) return n;
      const int wants = SSL_get_error(ssl_.get(), n);
      if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE) return std::unexpected(tls_text());
      if (!socket_.wait(wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, kWaitMs))
        return std::unexpected("it takes too long");
    }
  }

  template <auto release>
  struct Free {
    template <class T>
    void operator()(T* object) const {
      release(object);
    }
  };
  Socket socket_;
  std::unique_ptr<SSL_CTX, Free<&SSL_CTX_free>> context_;
  std::unique_ptr<SSL, Free<&SSL_free>> ssl_;
};

WireResult<Socket> open_socket(const RedisAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
      error != 0)
    return std::unexpected(std::string("isn't found: ") + ::gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> places(found, ::freeaddrinfo);
  std::string why;
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    Socket socket(::socket(place->ai_family, place->ai_socktype, place->ai_protocol));
    if (socket.number() < 0) return std::unexpected("can't be reached: " + system_text(errno));
    ::fcntl(socket.number(), F_SETFD, FD_CLOEXEC);
    ::fcntl(socket.number(), F_SETFL, O_NONBLOCK);
    const int yes = 1;
    ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    int error = ::connect(socket.number(), place->ai_addr, place->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      socklen_t size = sizeof error;
      if (!socket.wait(POLLOUT, kConnectMs)) {
        error = ETIMEDOUT;
      } else {
        ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
    }
    if (error == 0) return socket;
    why = "can't be reached: " + system_text(error);
  }
  return std::unexpected(why);
}

}  // namespace

WireResult<std::unique_ptr<Wire>> connect(const RedisAddress& address) {
  auto socket = open_socket(address);
  if (!socket) return std::unexpected(socket.error());
  if (!address.tls) return std::make_unique<PlainWire>(std::move(*socket));
  auto wire = std::make_unique<TlsWire>(std::move(*socket));
  if (const auto opened = wire->open(address.host); !opened) return std::unexpected(opened.error());
  return wire;
}

}  // namespace coppice::tier
