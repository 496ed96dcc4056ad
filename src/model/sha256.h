// SHA-256 of bytes that come in parts, by OpenSSL.
#pragma once

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "model/load_error.h"

namespace coppice::model {

/// Throws LoadError: OpenSSL refuses.
class Sha256 {
 public:
  Sha256() : ctx_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (!ctx_ || EVP_DigestInit_ex(ctx_.get(), EVP_sha256(), nullptr) != 1) throw LoadError("SHA-256 is not available");
  }
  void add(std::span<const std::byte> bytes) {
    if (EVP_DigestUpdate(ctx_.get(), bytes.data(), bytes.size()) != 1) throw LoadError("SHA-256 failed");
  }
  std::string hex() {
    std::array<unsigned char, 32> digest{};
    unsigned int n = 0;
    if (EVP_DigestFinal_ex(ctx_.get(), digest.data(), &n) != 1) throw LoadError("SHA-256 failed");
    std::string text;
    for (const unsigned char c : digest) text += fmt::format("{:02x}", c);
    return text;
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> ctx_;
};

}  // namespace coppice::model
