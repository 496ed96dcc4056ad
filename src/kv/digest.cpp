#include "kv/digest.h"

#include <openssl/evp.h>

#include <stdexcept>

#include "kv/faults.h"

namespace coppice::kv {

namespace {

// Length-prefixed, so that ("ab", "c") and ("a", "bc") hash differently.
void append(std::string& out, const std::string& field) {
  const std::uint64_t size = field.size();
  out.append(reinterpret_cast<const char*>(&size), sizeof size);
  out += field;
}

const EVP_MD* find_sha256() {
  const EVP_MD* const found = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  if (found == nullptr) throw std::runtime_error("SHA-256 is not available in this OpenSSL");
  return found;
}

}  // namespace

Digest sha256(std::span<const std::byte> bytes) {
  static const EVP_MD* const algorithm = find_sha256();  // EVP_sha256() has each call look for it: half of its time
  Digest digest;
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, algorithm, nullptr) != 1 || size != digest.size())
    throw std::runtime_error("SHA-256 failed");
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

// Blocks of one size have as many symbols, so what follows these can be nothing else.
Digest block_digest(const HashFn& hash, const Digest& parent, TextView text) {
  std::string bytes(parent.begin(), parent.end());
  const auto symbols = text.bits();
  bytes.append(reinterpret_cast<const char*>(symbols.data()), symbols.size_bytes());
  if (fault(Fault::kDigestOfSymbols)) return hash(std::as_bytes(std::span(bytes)));
  for (const MediumSpan& span : text.spans()) {
    const std::int32_t numbers[] = {span.first, span.n, span.index, span.medium.rows, span.medium.whole ? 1 : 0};
    bytes.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
    bytes.append(span.medium.digest.begin(), span.medium.digest.end());
  }
  return hash(std::as_bytes(std::span(bytes)));
}

}  // namespace coppice::kv
