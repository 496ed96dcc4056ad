// Options of sockets that systems name and count differently.
#pragma once

namespace coppice::port {

/// A peer whose machine or network is gone says nothing. The system asks a peer that is silent, and ends the connection (ETIMEDOUT) after half
/// a minute without an answer, or when what was sent is not acknowledged for `write_seconds`. Options that the system lacks are left out.
void notice_dead_peer(int socket, double write_seconds);

}  // namespace coppice::port
