// Namespace: all besides its tokens that decides what a block holds and who may see it. Plain data, standard library only.
#pragma once

#include <compare>
#include <cstddef>
#include <string>
#include <string_view>

namespace coppice::kv {

/// Different namespaces never share. Whoever keeps something by namespace uses it whole.
struct Namespace {
  /// What a key's own salt begins with, which no text has, and how long it is.
  static constexpr char kOwnerMark = '\xff';
  static constexpr std::size_t kOwnerBytes = 33;

  std::string salt;     ///< cache_salt of the request, added to the API key's own
  std::string adapter;  ///< LoRA and rope overrides; empty: none

  /// The API key's own salt, where keys are kept apart; else empty.
  std::string_view owner() const {
    const bool is_owned = salt.size() >= kOwnerBytes && salt.front() == kOwnerMark;
    return std::string_view(salt).substr(0, is_owned ? kOwnerBytes : 0);
  }
  friend auto operator<=>(const Namespace&, const Namespace&) = default;
};

}  // namespace coppice::kv
