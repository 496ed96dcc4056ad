// Oracle: what the fake executor must answer, from the token history alone: no blocks, no slots, no tables.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/types.h"

namespace coppice::testing {

class Oracle {
 public:
  explicit Oracle(std::vector<kv::GroupSpec> groups);

  void feed(kv::Token token);
  /// The hash in the logits row of the token fed last.
  std::uint64_t logits_hash() const { return logits_; }

 private:
  std::uint64_t attend(const std::vector<std::uint64_t>& keys, std::vector<std::uint64_t>& running);

  std::vector<kv::GroupSpec> groups_;
  std::vector<std::uint64_t> shallow_;       ///< [position]: the first layer's keys
  std::vector<std::uint64_t> deep_;          ///< [position]: the second layer's
  std::vector<std::uint64_t> shallow_full_;  ///< [group]: all shallow keys hashed, for full groups
  std::vector<std::uint64_t> deep_full_;     ///< [group]
  std::uint64_t state_;                      ///< of recurrent layers
  std::uint64_t logits_ = 0;
};

/// The tokens of a sample that is never interrupted.
std::vector<kv::Token> expected_tokens(const std::vector<kv::GroupSpec>& groups, std::span<const kv::Token> prompt,
                                       std::uint64_t seed, int n_tokens);

}  // namespace coppice::testing
