// Bytes of a connection: through the session, the routes and the request reader to a scripted model and back.
//
// An input's first byte is the size of the pieces that the rest arrives in; 0: all at once. (At most kMaxPieces.)
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

#include "fuzz/fuzz.h"
#include "fuzz/server_world.h"
#include "fuzz/watchdog.h"
#include "server/fake_model.h"

namespace coppice::testing {
namespace {

constexpr std::size_t kMaxPieces = 64;

/// Takes what the server wrote, which must look like replies.
void read_replies(int fd, bool& first) {
  std::array<char, 65536> bytes{};
  for (ssize_t n; (n = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT)) > 0; first = false) {
    const std::string_view text(bytes.data(), static_cast<std::size_t>(n));
    if (first && !text.starts_with("HTTP/1.1 ")) finding("a reply begins with " + std::string(text.substr(0, 40)));
  }
}

void connection(ServerWorld& world, std::string_view bytes, std::size_t piece) {
  world.api.set_ready(std::make_shared<FakeModel>(world.hub.sink(), words({"one", "two"})));
  const Watchdog watchdog;
  const ServerWorld::Peer peer = world.connect();

  bool first = true;
  while (!bytes.empty() && !*peer.ended) {
    const std::string_view part = bytes.substr(0, piece);
    const ssize_t n = ::send(peer.fd, part.data(), part.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    world.settle();
    read_replies(peer.fd, first);
    if (n < 0) break;
  }
  ::close(peer.fd);
  world.settle();
  if (!*peer.ended) finding("the session outlives its client");
  if (world.bodies.used() != 0) finding("a body was not given back");
  if (world.hub.open() != 0) finding("a request was not cancelled");
}

}  // namespace
}  // namespace coppice::testing

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static coppice::testing::ServerWorld world;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t piece = data[0] == 0 ? size : std::max<std::size_t>(data[0], size / coppice::testing::kMaxPieces);
  coppice::testing::connection(world, bytes.substr(1), piece);
  return 0;
}
