// EventNames: what blocks and salts are called in events. Any thread.
//
// A block's name is a part of its digest: servers of one model with one layout give equal texts equal names, which some
// routers rely on. What is an API key's own gets names under a secret: its digests are made from the key, and whoever
// knows a text could try keys on them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "kv/namespace.h"
#include "kv/types.h"

namespace coppice::events {

class EventNames {
 public:
  using Secret = std::array<std::uint8_t, 32>;

  explicit EventNames(const Secret& secret) : secret_(secret) {}
  /// A secret of 32 random bytes. Throws std::runtime_error: the library gives none.
  static Secret random_secret();

  /// Throws std::runtime_error where the library refuses.
  std::uint64_t block(const kv::Digest& digest, const kv::Namespace& ns) const;
  /// Empty: the namespace has no salt. A request's own is told as it is, as vLLM does; one with a key's in it in 32
  /// hexadecimal digits.
  std::string salt(const kv::Namespace& ns) const;

 private:
  Secret secret_;
};

}  // namespace coppice::events
