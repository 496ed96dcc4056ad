#include "tier/seal.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "check/assert.h"

namespace coppice::tier {

namespace {

constexpr std::string_view kMark = "coppiceS";
constexpr std::size_t kDrawn = 12, kProof = 16;
static_assert(kMark.size() + kDrawn + kProof == Seal::kBytes);

using Cipher = std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)>;

unsigned char* octets(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

/// HMAC-SHA-256 of what it is for and some bytes.
std::array<std::uint8_t, 32> hash(std::span<const std::uint8_t> key, std::string_view what,
                                  std::span<const std::uint8_t> bytes) {
  std::vector<std::uint8_t> text(what.begin(), what.end());
  text.push_back(0);
  text.insert(text.end(), bytes.begin(), bytes.end());
  std::array<std::uint8_t, 32> sum{};
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(), sum.data(), &size) ==
          nullptr ||
      size != sum.size())
    throw std::runtime_error("HMAC-SHA-256 failed");
  return sum;
}

std::array<std::uint8_t, 16> half(const std::array<std::uint8_t, 32>& whole) {
  std::array<std::uint8_t, 16> part{};
  std::ranges::copy_n(whole.begin(), 16, part.begin());
  return part;
}

/// Of a piece: its parts have no gaps between them.
std::span<const std::uint8_t> bytes_of(const Name& name) {
  static_assert(sizeof(Name) == 64);
  return {reinterpret_cast<const std::uint8_t*>(&name), sizeof name};
}

}  // namespace

Seal::Seal(std::span<const std::byte> secret) {
  COPPICE_ASSERT(secret.size() >= kLeastSecret);
  const std::span key(reinterpret_cast<const std::uint8_t*>(secret.data()), secret.size());
  names_ = hash(key, "names", {});
  pieces_ = hash(key, "pieces", {});
}

Name Seal::outside(const Name& name) const {
  return {half(hash(names_, "model", name.model)), half(hash(names_, "space", name.space)),
          hash(names_, "piece", bytes_of(name))};
}

Which Seal::outside(const Which& which) const {
  Which there = which;
  if (which.model) there.model = half(hash(names_, "model", *which.model));
  if (which.space) there.space = half(hash(names_, "space", *which.space));
  return there;
}

Seal::Key Seal::key_of(const Name& name) const {
  return hash(pieces_, "piece", bytes_of(name));
}

bool Seal::close(const Name& name, Buffer& piece) const {
  const std::size_t n = piece.size();
  if (n + kBytes > piece.memory().size() || n > std::numeric_limits<int>::max()) return false;
  piece.set_size(n + kBytes);
  std::byte* const bytes = piece.bytes().data();
  std::byte *const drawn = bytes + n + kMark.size(), *const proof = drawn + kDrawn;
  std::memcpy(bytes + n, kMark.data(), kMark.size());
  const Key key = key_of(name);
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int done = 0;
  return cipher != nullptr && RAND_bytes(octets(drawn), kDrawn) == 1 &&
         EVP_EncryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), octets(drawn)) == 1 &&
         EVP_EncryptUpdate(cipher.get(), octets(bytes), &done, octets(bytes), static_cast<int>(n)) == 1 &&
         EVP_EncryptFinal_ex(cipher.get(), octets(bytes) + done, &done) == 1 &&
         EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_GET_TAG, kProof, proof) == 1;
}

bool Seal::open(const Name& name, Buffer& piece) const {
  const bool sealed = is_sealed(piece.bytes()) && piece.size() <= std::numeric_limits<int>::max();
  const std::size_t n = sealed ? piece.size() - kBytes : 0;
  std::byte* const bytes = piece.bytes().data();
  piece.set_size(0);
  if (!sealed) return false;
  std::byte *const drawn = bytes + n + kMark.size(), *const proof = drawn + kDrawn;
  const Key key = key_of(name);
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int done = 0;
  const bool opens = cipher != nullptr &&
                     EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), octets(drawn)) == 1 &&
                     EVP_DecryptUpdate(cipher.get(), octets(bytes), &done, octets(bytes), static_cast<int>(n)) == 1 &&
                     EVP_CIPHER_CTX_ctrl(cipher.get(), EVP_CTRL_GCM_SET_TAG, kProof, proof) == 1 &&
                     EVP_DecryptFinal_ex(cipher.get(), octets(bytes) + done, &done) == 1;
  if (opens) piece.set_size(n);
  return opens;
}

bool Seal::open_head(const Name& name, std::span<std::byte> head, std::span<const std::byte> end) const {
  if (!is_sealed(end) || head.size() > std::numeric_limits<int>::max()) return false;
  const auto* const drawn = reinterpret_cast<const unsigned char*>(end.last(kDrawn + kProof).data());
  const Key key = key_of(name);
  const Cipher cipher(EVP_CIPHER_CTX_new(), &EVP_CIPHER_CTX_free);
  int done = 0;
  return cipher != nullptr && EVP_DecryptInit_ex(cipher.get(), EVP_aes_256_gcm(), nullptr, key.data(), drawn) == 1 &&
         EVP_DecryptUpdate(cipher.get(), octets(head.data()), &done, octets(head.data()),
                           static_cast<int>(head.size())) == 1;
}

bool Seal::is_sealed(std::span<const std::byte> bytes) {
  return bytes.size() >= kBytes && std::memcmp(bytes.data() + bytes.size() - kBytes, kMark.data(), kMark.size()) == 0;
}

}  // namespace coppice::tier
