#include "events/event_names.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cstring>
#include <stdexcept>
#include <string_view>

namespace coppice::events {

namespace {

kv::Digest keyed_digest(const EventNames::Secret& secret, char purpose, std::string_view bytes) {
  const std::string message = purpose + std::string(bytes);
  kv::Digest digest{};
  unsigned int size = 0;
  const auto* data = reinterpret_cast<const unsigned char*>(message.data());
  const bool done = HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()), data, message.size(),
                         digest.data(), &size) != nullptr;
  if (!done || size != digest.size()) throw std::runtime_error("HMAC failed");
  return digest;
}

std::string_view bytes_of(const kv::Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace

EventNames::Secret EventNames::random_secret() {
  Secret secret;
  if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1) throw std::runtime_error("no random bytes");
  return secret;
}

std::uint64_t EventNames::block(const kv::Digest& digest, const kv::Namespace& ns) const {
  const kv::Digest of = ns.owner().empty() ? digest : keyed_digest(secret_, 'b', bytes_of(digest));
  std::uint64_t name = 0;
  std::memcpy(&name, of.data(), sizeof name);
  return name;
}

std::string EventNames::salt(const kv::Namespace& ns) const {
  if (ns.owner().empty()) return ns.salt;
  constexpr std::size_t kBytes = 16;  // in 64 digits a router would see a picture's digest
  std::string text;
  const kv::Digest digest = keyed_digest(secret_, 's', ns.salt);
  for (std::size_t i = 0; i < kBytes; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace coppice::events
