#include "kv/digest.h"

#include <openssl/evp.h>

#include <stdexcept>

namespace coppice::kv {

namespace {

// Length-prefixed, so that ("ab", "c") and ("a", "bc") hash differently.
void append(std::string& out, const std::string& field) {
  const std::uint64_t size = field.size();
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += field;
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  Digest digest;
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1 ||
      size != digest.size()) {
    throw std::runtime_error("SHA-256 is not available in this OpenSSL");
  }
  return digest;
}

Digest root_digest(const HashFn& hash, const std::string& model, const std::string& layout, const Namespace& ns) {
  std::string bytes;
  append(bytes, model);
  append(bytes, layout);
  append(bytes, ns.salt);
  append(bytes, ns.adapter);
  return hash(std::as_bytes(std::span(bytes)));
}

Digest block_digest(const HashFn& hash, const Digest& parent, std::span<const Token> tokens) {
  std::string bytes(parent.begin(), parent.end());
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return hash(std::as_bytes(std::span(bytes)));
}

}  // namespace coppice::kv
