// Namespace: all besides its tokens that decides what a block holds and who may see it. Plain data, standard library only.
#pragma once

#include <compare>
#include <string>

namespace coppice::kv {

/// Different namespaces never share. Whoever keeps something by namespace uses it whole.
struct Namespace {
  std::string salt;     ///< cache_salt of the request, added to the API key's own
  std::string adapter;  ///< LoRA and rope overrides; empty: none
  friend auto operator<=>(const Namespace&, const Namespace&) = default;
};

}  // namespace coppice::kv
