// TreeObserver: is told which full blocks the prefix tree has: what routers are told of a server. Abstract; implemented
// above kv.
//
// The engine's thread calls it, in the middle of a change of the tree: it copies what it wants to keep, throws nothing,
// and calls nothing of the cache.
//
// Invariants
//  1. A block enters once before it leaves, and leaves once: blocks that were merged are the tree's already.
//  2. What comes before a block in its text entered before it, and leaves after it.
#pragma once

#include "kv/digest.h"
#include "kv/namespace.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

/// A full block of the full group. A view, until the call returns.
struct TreeBlock {
  Digest digest{};        ///< of the text up to its end
  Digest parent{};        ///< of the text before it; of the namespace, if nothing is before it
  bool is_first = false;  ///< nothing is before it
  TextView text;          ///< its own: [block_size]
  const Namespace* ns = nullptr;
};

class TreeObserver {
 public:
  virtual ~TreeObserver() = default;
  virtual void entered(const TreeBlock& block) noexcept = 0;
  virtual void left(const Digest& digest, const Namespace& ns) noexcept = 0;

  /// It wants to be told anew of all that is there. Asked between changes.
  virtual bool wants_all() const noexcept = 0;
  /// Before the first block of all, and behind the last one. Those that entered before are told again.
  virtual void begin_all() noexcept = 0;
  virtual void end_all() noexcept = 0;
};

}  // namespace coppice::kv
