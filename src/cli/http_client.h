// A small blocking HTTP client for demo and chat: one exchange on a connection to this machine. Thread safe: no state.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace coppice::cli {

struct HttpReply {
  unsigned status = 0;  ///< 0: nobody answered
  std::string body;
};

HttpReply http_get(std::uint16_t port, const std::string& path);

/// `so_far` gets the whole of the answer's body that is there, each time more has come. Throws std::runtime_error when
/// the server can't be reached or breaks off. key: an API key; empty: none is sent.
HttpReply http_post(std::uint16_t port, const std::string& path, const std::string& json,
                    const std::function<void(std::string_view)>& so_far, const std::string& key = "");

}  // namespace coppice::cli
