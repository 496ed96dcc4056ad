// Fetcher: files from other servers, whose URLs clients send.
//
// It follows few redirections, each of which is looked at as the URL was: its host must be allowed, and each address
// that its name has. It connects to the address that was looked at, whatever the name means a moment later.
// Certificates are checked by the system's authorities (or those of SSL_CERT_FILE). No proxies, no cookies, no
// encodings.
//
// Thread safety: any number of threads at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/fetch/media_hosts.h"

namespace coppice::server {

class Fetcher {
 public:
  static constexpr int kMostRedirections = 3;
  static constexpr int kAtOnce = 8;  ///< files of one call

  struct Limits {
    std::size_t bytes = std::size_t{16} << 20;  ///< of all files of a call
    double seconds = 10;                        ///< for all of them; the system's search for a name may take longer
  };

  Fetcher(MediaHosts hosts, const Limits& limits);
  ~Fetcher();
  Fetcher(const Fetcher&) = delete;
  Fetcher& operator=(const Fetcher&) = delete;

  bool off() const { return hosts_.none(); }

  /// The error says why there is none, and follows "the image".
  using File = std::expected<std::vector<std::uint8_t>, std::string>;
  /// On this thread, which waits, and pauses between two looks for news where it works in turns (port/turn.h). `stop`:
  /// asked every some milliseconds; true: what is not there yet never comes.
  std::vector<File> fetch(std::span<const std::string> urls, const std::function<bool()>& stop) const;

 private:
  class Call;
  struct Tls;

  const MediaHosts hosts_;
  const Limits limits_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace coppice::server
