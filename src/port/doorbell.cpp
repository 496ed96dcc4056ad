#include "port/doorbell.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

namespace coppice::port {

Doorbell::Doorbell() {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  reads_ = ends[0];
  writes_ = ends[1];
  for (const int end : ends) {
    fcntl(end, F_SETFL, fcntl(end, F_GETFL) | O_NONBLOCK);
    fcntl(end, F_SETFD, FD_CLOEXEC);
  }
}

Doorbell::~Doorbell() {
  close(reads_);
  close(writes_);
}

// A full pipe has been rung already.
void Doorbell::ring() noexcept {
  const char byte = 0;
  while (write(writes_, &byte, 1) < 0 && errno == EINTR) {
  }
}

void Doorbell::answer() noexcept {
  std::array<char, 64> bytes{};
  for (;;) {
    const auto n = read(reads_, bytes.data(), bytes.size());
    if (n == static_cast<ssize_t>(bytes.size()) || (n < 0 && errno == EINTR)) continue;
    return;
  }
}

}  // namespace coppice::port
