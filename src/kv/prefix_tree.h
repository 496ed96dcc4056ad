// PrefixTree: a path-compressed radix tree over tokens that indexes blocks. Not thread safe.
//
// Nodes split at block boundaries only, so siblings may begin with the same tokens: a system prompt that ends inside a
// block gives every user a child of its own.
//
// Invariants (besides tree_node.h's; check_integrity() checks them):
//  1. Every node but a root has at least one block, a root has none. Only a leaf ends in a partial block; a block that
//     extends it replaces it.
//  2. An inner node that is not a root has two children or more. A root has one or more.
//  3. The tree holds one reference on every block it names. A null block in a sliding group is a hole; group 0 has
//     none.
//  4. place(id) names the node and the absolute index of every block in the tree.
//
// Memory: what may throw comes first in every change. If it throws, the tree is as it was.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/cache_config.h"
#include "kv/digest.h"
#include "kv/prefix_match.h"
#include "kv/state_table.h"
#include "kv/text.h"
#include "kv/tree_node.h"
#include "kv/tree_observer.h"
#include "kv/types.h"

namespace coppice::kv {

/// What was thrown out.
struct Cleared {
  std::int64_t blocks = 0;
  std::int64_t tokens = 0;  ///< whose places in the tree are gone
};

class PrefixTree {
 public:
  /// A place between blocks: after `blocks` of this node's own blocks.
  struct Cursor {
    TreeNode* node = nullptr;
    std::int32_t blocks = 0;
  };

  /// Where a block of the tree is.
  struct Place {
    TreeNode* node = nullptr;
    std::int32_t block = 0;  // absolute index
  };

  /// All must outlive the tree.
  PrefixTree(BlockPool& pool, StateTable& states, const CacheConfig& config);

  /// The longest known prefix of `tokens` whose sliding windows have no hole, and with a state of the recurrent layers
  /// if there are such. Compares tokens, never hashes.
  PrefixMatch match(TextView tokens, const Namespace& ns) const;

  /// The full group's ids of the whole blocks at the beginning of `tokens` that the tree has, whatever windows and
  /// states are there.
  std::vector<BlockId> whole_blocks(TextView tokens, const Namespace& ns) const;

  /// Where the first block of a namespace goes. Makes the root if need be: publish() must follow.
  Cursor root(const Namespace& ns);
  /// The place right after a block of the tree.
  Cursor after(BlockId full_group_id) const;

  /// Enters a block after `at`: full, or the partial tail of a sequence that ends. `ids` [n_groups] are the
  /// publisher's. If the tree has the same full block already, `ids` are set to the tree's, and the publisher repoints
  /// its tables. If it covers a partial one, nothing happens. Returns the place after the block (partial: `at`).
  /// REQUIRES: 0 < tokens.size() <= block_size.
  Cursor publish(Cursor at, TextView tokens, std::span<BlockId> ids);

  /// Lets go of a cached block. In the full group it is a leaf's last block, and goes with all its groups; in a sliding
  /// group it goes with the groups of the same window, and leaves a hole. A state goes whole, or with the block it
  /// stands behind. Returns the number of blocks freed.
  int evict(BlockId id);

  /// Evicts all that nobody holds.
  Cleared clear();

  /// Whether a sliding block lies in the last window before a branch: every branch needs it, so it is worth keeping
  /// longer.
  bool before_branch(BlockId id, const GroupSpec& group) const;

  /// Null: nobody is told. It outlives the tree, or is replaced before.
  void observe(TreeObserver* observer) { observer_ = observer; }
  /// Tells an observer who wants that of all full blocks. O(tree).
  void tell_all() const;

  std::int64_t node_count() const { return node_count_; }

  // For pictures.
  void set_time(double seconds) { now_ = seconds; }
  /// A request starts on this match.
  void count_hit(const PrefixMatch& match);

  // For check_integrity(), dump() and explain().
  const std::map<Namespace, std::unique_ptr<TreeNode>>& roots() const { return roots_; }
  Place place(BlockId id) const { return places_[id]; }
  /// The full group's block before one of its blocks; the null block at the start of a text.
  BlockId block_before(BlockId id) const;

 private:
  /// What a publisher brings.
  struct Block {
    TextView tokens;
    std::span<const BlockId> ids;
    Digest digest;
  };

  std::unique_ptr<TreeNode> make_node();
  TreeNode::Children::node_type make_child();
  Cursor publish_block(Cursor at, TextView tokens, std::span<BlockId> ids);
  Cursor merge(TreeNode& node, std::int32_t i, std::span<BlockId> ids);
  void append(TreeNode& leaf, const Block& block);
  void add_child(TreeNode& parent, TreeNode::Children::node_type child, const Block& block);
  void replace_partial(TreeNode& leaf, const Block& block);
  void split(TreeNode& node, std::int32_t blocks);
  void make_hole(std::span<BlockId> row, int group);
  void evict_last_block(TreeNode& leaf);
  void drop_last_block(TreeNode& leaf);
  void drop_unfounded_states(BlockId anchor);
  void remove_leaf(TreeNode& leaf);
  void remove_root(TreeNode& root);
  void absorb_only_child(TreeNode& node);
  void set_places(TreeNode& node, std::int32_t from_block);
  void raise_before(BlockId id, std::uint32_t uses);
  void warm_last_window(const TreeNode& node);
  void tell_entered(const TreeNode& node, std::int32_t i, const Namespace& ns) const;

  BlockPool& pool_;
  StateTable& states_;
  const CacheConfig& config_;
  const int bs_;
  const int n_groups_;
  std::map<Namespace, std::unique_ptr<TreeNode>> roots_;
  std::vector<Place> places_;  // by block id
  std::int64_t node_count_ = 0;
  std::uint64_t last_serial_ = 0;
  double now_ = 0;
  TreeObserver* observer_ = nullptr;
};

}  // namespace coppice::kv
