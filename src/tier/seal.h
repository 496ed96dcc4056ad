// Seal: keeps pieces from who has the store and not the secret. They can't be read, or made, or passed off as others;
// names tell nothing but which pieces are of one model and one API key. Immutable: any thread.
//
// AES-256-GCM, with a key of its own for each piece, made from the secret and the piece's name: so it opens under that
// name only. Behind the sealed bytes stand 8 that say that they are sealed, 12 that were drawn, and the 16 that prove
// the rest.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tier/buffers.h"
#include "tier/name.h"
#include "tier/store.h"

namespace coppice::tier {

class Seal {
 public:
  static constexpr std::size_t kBytes = 36;        ///< that a sealed piece is longer
  static constexpr std::size_t kLeastSecret = 32;  ///< bytes

  /// REQUIRES: secret.size() >= kLeastSecret. Throws std::runtime_error: the library refuses.
  explicit Seal(std::span<const std::byte> secret);

  /// What a piece is called outside. Equal parts of names have equal parts outside.
  Name outside(const Name& name) const;
  Which outside(const Which& which) const;

  /// In place. `name`: outside(). False: there is no room for it, or the library refuses.
  bool close(const Name& name, Buffer& piece) const;
  /// In place. False, and size() == 0: it is not what was closed under this name.
  bool open(const Name& name, Buffer& piece) const;

  /// Opens a piece's first bytes in place, of which nobody knows then whether they are what was closed. `end`: its last
  /// kBytes. False: it isn't sealed.
  bool open_head(const Name& name, std::span<std::byte> head, std::span<const std::byte> end) const;

  /// Whether bytes look like a sealed piece's.
  static bool is_sealed(std::span<const std::byte> bytes);

 private:
  using Key = std::array<std::uint8_t, 32>;
  Key key_of(const Name& name) const;

  Key names_, pieces_;
};

}  // namespace coppice::tier
