// Wire: a connection that bytes go through, with an end to each wait; an own socket, with TLS where the address says so
// (OpenSSL). One thread at a time. Errors are ends of sentences: "can't be reached: Connection refused".
#pragma once

#include <cstddef>
#include <expected>
#include <memory>
#include <span>
#include <string>

#include "tier/redis/redis_url.h"

namespace coppice::tier {

template <class T>
using WireResult = std::expected<T, std::string>;

class Wire {
 public:
  virtual ~Wire() = default;
  /// All of it.
  virtual WireResult<void> send(std::span<const std::byte> bytes) = 0;
  /// How many bytes came, at least 1.
  virtual WireResult<std::size_t> receive(std::span<std::byte> into) = 0;
};

/// Waits for at most some seconds, and so does each call after that.
WireResult<std::unique_ptr<Wire>> connect(const RedisAddress& address);

}  // namespace coppice::tier
