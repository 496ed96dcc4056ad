// KnownPrefixes: the trivial double of the tree: a plain trie, one token a node, of every history that was
// ever published. It never forgets, so it bounds a match from above, and states it exactly while nothing was
// evicted.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "kv/digest.h"
#include "kv/types.h"

namespace coppice::test {

/// Tokens that two histories have in common at their beginnings.
inline std::int32_t common_prefix(std::span<const kv::Token> a, std::span<const kv::Token> b) {
  const auto ends = std::ranges::mismatch(a, b);
  return static_cast<std::int32_t>(ends.in1 - a.begin());
}

class KnownPrefixes {
 public:
  void add(const kv::Namespace& ns, std::span<const kv::Token> history) {
    std::size_t at = root(ns);
    for (const kv::Token t : history) {
      const auto found = nodes_[at].find(t);
      if (found != nodes_[at].end()) {
        at = found->second;
        continue;
      }
      nodes_.emplace_back();
      nodes_[at][t] = nodes_.size() - 1;
      at = nodes_.size() - 1;
    }
  }

  /// Length of the longest known prefix of `tokens`.
  std::int32_t longest(const kv::Namespace& ns, std::span<const kv::Token> tokens) const {
    const auto start = roots_.find(ns);
    if (start == roots_.end()) return 0;
    std::size_t at = start->second;
    std::int32_t length = 0;
    for (const kv::Token t : tokens) {
      const auto found = nodes_[at].find(t);
      if (found == nodes_[at].end()) break;
      at = found->second;
      ++length;
    }
    return length;
  }

 private:
  std::size_t root(const kv::Namespace& ns) {
    const auto [it, is_new] = roots_.try_emplace(ns, nodes_.size());
    if (is_new) nodes_.emplace_back();
    return it->second;
  }

  std::map<kv::Namespace, std::size_t> roots_;
  std::vector<std::map<kv::Token, std::size_t>> nodes_;
};

}  // namespace coppice::test
