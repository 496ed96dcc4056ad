#include "port/sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

namespace coppice::port {

void notice_dead_peer(int socket, double write_seconds) {
  const auto set = [socket](int level, int option, int value) {
    ::setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
  set(IPPROTO_TCP, TCP_KEEPIDLE, 15);  // seconds; 15 + 3 * 5 until it counts as gone
#else
  set(IPPROTO_TCP, TCP_KEEPALIVE, 15);
#endif
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
#ifdef TCP_USER_TIMEOUT
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min(write_seconds, 1e6) * 1000));
#else
  static_cast<void>(write_seconds);
#endif
}

std::ptrdiff_t send_quietly(int socket, std::span<const std::byte> bytes) {
#ifdef SO_NOSIGPIPE  // where MSG_NOSIGNAL is younger than this program's oldest system
  const int on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
  return ::send(socket, bytes.data(), bytes.size(), 0);
#else
  return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
#endif
}

}  // namespace coppice::port
