// Oracle: what the fake executor must answer, from the token history alone: no blocks, no slots, no tables.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/types.h"

namespace coppice::testing {

class Oracle {
 public:
  explicit Oracle(std::vector<kv::GroupSpec> groups);

  void feed(kv::Token token);
  /// All of a prompt's words (support/kv_words.h), or tokens. Calls after(i) behind each; what a medium that can't be
  /// cut gives is there when all of it is.
  void feed_all(std::span<const kv::Token> words, const std::function<void(std::size_t)>& after = {});
  /// The hash in the logits row of the token fed last; in after(i) of that word.
  std::uint64_t logits_hash() const { return logits_; }

 private:
  /// What a row sees: its key, and what that is rotated by if that is not its index.
  struct Key {
    std::uint64_t key = 0, rotation = 0;
  };
  struct Layer {
    std::vector<Key> keys;              ///< [position]
    std::vector<std::uint64_t> hashed;  ///< [group]: all of them, for full groups
  };
  void add_key(Layer& layer, Key key);
  std::uint64_t attend(const Layer& layer, std::size_t position, std::size_t end, std::uint64_t state) const;
  void add_rows(std::span<const kv::Token> symbols, bool both_ways, const std::function<void(std::size_t)>& after);

  std::vector<kv::GroupSpec> groups_;
  Layer shallow_, deep_;
  std::int32_t shift_ = 0;                               ///< positions less indices
  std::function<std::uint64_t(std::int32_t)> rotation_;  ///< of rows of a grid
  std::uint64_t state_;                                  ///< of recurrent layers
  std::uint64_t logits_ = 0;
};

/// The tokens of a sample that is never interrupted, behind a prompt of words.
std::vector<kv::Token> expected_tokens(const std::vector<kv::GroupSpec>& groups, std::span<const kv::Token> prompt,
                                       std::uint64_t seed, int n_tokens);

}  // namespace coppice::testing
