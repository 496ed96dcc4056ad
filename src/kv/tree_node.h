// TreeNode: a run of whole blocks in the prefix tree, and the nodes that continue it. Knows its text ("tokens", pieces
// of media included), ids and digests; what a change means for counts and for the eviction order is PrefixTree's. Not
// thread safe.
//
// Children are ordered by the tokens of their first block. So the child that shares the most tokens with a text is a
// neighbour of the place where that text would stand, and is found in O(log children).
//
// Invariants (check_integrity() checks them):
//  1. tokens, ids and digests describe the same n_blocks() blocks. Only the last block may be partial: it has fewer
//     than block_size tokens, and no digest yet.
//  2. Siblings have different first blocks, and no sibling continues a partial one.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "kv/digest.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

struct TreeNode {
  /// Orders siblings by the tokens of their first block.
  struct Less {
    using is_transparent = void;
    bool operator()(const std::unique_ptr<TreeNode>& a, const std::unique_ptr<TreeNode>& b) const;
    bool operator()(const std::unique_ptr<TreeNode>& a, TextView b) const;
    bool operator()(TextView a, const std::unique_ptr<TreeNode>& b) const;
  };
  using Children = std::set<std::unique_ptr<TreeNode>, Less>;

  TreeNode(int block_size, int n_groups) : block_size(block_size), n_groups(n_groups) {}

  const int block_size;
  const int n_groups;
  TreeNode* parent = nullptr;     // nullptr: a root, which has no blocks
  const Namespace* ns = nullptr;  // of a root
  std::int32_t first_block = 0;   // blocks above this node
  std::uint64_t serial = 0;       // of no other node, ever
  std::uint32_t hits = 0;         // requests that matched tokens of it, since it was made or split off
  double last_used = 0;           // when a request matched it, or added a block: PrefixTree::set_time()
  Text tokens;                    // [n_blocks * block_size], the last block perhaps partial
  std::vector<BlockId> ids;       // [n_blocks, n_groups]
  std::vector<Digest> digests;    // [n_blocks]; of a root [1]: the parent of first blocks
  Children children;

  std::int32_t n_blocks() const { return static_cast<std::int32_t>(ids.size()) / n_groups; }
  std::int32_t end_block() const { return first_block + n_blocks(); }
  bool is_partial() const { return tokens.size() % block_size != 0; }
  /// The ids of this node's block i: [n_groups].
  std::span<BlockId> row(std::int32_t i) { return std::span(ids).subspan(i * n_groups, n_groups); }
  std::span<const BlockId> row(std::int32_t i) const { return std::span(ids).subspan(i * n_groups, n_groups); }
  /// The tokens of this node's block i: block_size of them, or fewer in a partial one.
  TextView block_tokens(std::int32_t i) const;
  /// Of the text before this node's block i; of the namespace, if nothing is before it. REQUIRES: it is no root.
  const Digest& digest_before(std::int32_t i) const {
    return i > 0 ? digests[static_cast<std::size_t>(i - 1)] : parent->digests.back();
  }

  struct Candidate {
    TreeNode* child = nullptr;
    std::int32_t common = 0;  // tokens of its first block that agree
  };
  /// The child that shares the most tokens with `text` in its first block; null when none shares any. `whole`: among
  /// the children whose first block has no hole: siblings may begin with the same tokens, and one may have lost what
  /// another still has.
  Candidate best_child(TextView text, bool whole = false) const;

  /// Room for so many more blocks with this text, so that push_block() and take_in() cannot fail.
  void make_room(std::int32_t blocks, TextView text);
  /// REQUIRES: room.
  void push_block(TextView block_tokens, std::span<const BlockId> block_ids, const Digest& digest);
  void pop_block();
  /// Moves what follows the first `blocks` blocks, and all children, to an empty node.
  /// REQUIRES: `lower` has room for it.
  void move_tail(std::int32_t blocks, TreeNode& lower);
  /// Appends the blocks of what was the only child, and takes its children.
  /// REQUIRES: room; `child` is in no node's children any more.
  void take_in(TreeNode& child);

 private:
  /// What the first block of a child is compared with.
  TextView first_block_of(TextView text) const;
};

}  // namespace coppice::kv
