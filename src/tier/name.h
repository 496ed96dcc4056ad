// Name: what a piece is called outside of this process. Equal names mean equal bytes: whoever computes the one may use
// the other's. Plain data, any thread.
//
// A piece is what a block of one layer group holds, or a state of the recurrent layers. Nobody serves it on the word of
// its name: its own tokens are compared, too (piece.h).
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>

namespace coppice::tier {

struct Name {
  /// The model's whole content, the arithmetic's version, how bytes lie in a page: who differs in one of these can't
  /// use the other's pieces.
  std::array<std::uint8_t, 16> model{};
  /// Whose it is, so that all of that can go at once: an API key's, where keys are kept apart, or everybody's.
  std::array<std::uint8_t, 16> space{};
  /// SHA-256 of the digest of all tokens up to the piece's end, of the requests' namespace, and of what it is of: which
  /// layer group, or a state.
  std::array<std::uint8_t, 32> piece{};
  friend auto operator<=>(const Name&, const Name&) = default;
};

/// In hexadecimal: "MODEL-SPACE-PIECE", of 32, 32 and 64 digits.
std::string to_string(const Name& name);

struct HashOfName {
  /// Names are hashes themselves.
  std::size_t operator()(const Name& name) const {
    std::size_t hash = 0;
    std::memcpy(&hash, name.piece.data(), sizeof hash);
    return hash;
  }
};

}  // namespace coppice::tier
