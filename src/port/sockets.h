// Options of sockets that systems name and count differently.
#pragma once

#include <cstddef>
#include <span>

namespace coppice::port {

/// A peer whose machine or network is gone says nothing. The system asks a peer that is silent, and ends the connection
/// (ETIMEDOUT) after half a minute without an answer, or when what was sent is not acknowledged for `write_seconds`.
/// Options that the system lacks are left out.
void notice_dead_peer(int socket, double write_seconds);

/// As send() without flags, but a peer that is gone is an error (EPIPE), never a signal.
std::ptrdiff_t send_quietly(int socket, std::span<const std::byte> bytes);

}  // namespace coppice::port
