// PrefixTree: a path-compressed radix tree over tokens that indexes blocks [K5]. Not thread safe.
//
// A node holds a run of whole blocks and splits at block boundaries only, so siblings may begin with the same tokens:
// a system prompt that ends inside a block gives every user a child of its own. Children are ordered by the tokens of
// their first block; the sibling with the longest common prefix is therefore a neighbour of the place where the wanted
// tokens would stand: O(log children).
//
// Invariants:
//  1. Every node but a root has at least one block. Only a leaf's last block may be partial (fewer than block_size
//     tokens), and no sibling continues it: a block that extends a partial leaf replaces it.
//  2. No two children of a node have the same first block. An inner node that is not a root has two children or more.
//  3. The tree holds one reference on every block it names. A null block in a sliding group is a hole; group 0 has none.
//  4. place(id) names the node and the absolute index of every block in the tree.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "kv/block_pool.h"
#include "kv/digest.h"
#include "kv/match_end.h"
#include "kv/types.h"

namespace coppice::kv {

class PrefixTree {
 public:
  struct Node;

  /// Orders siblings by the tokens of their first block.
  struct TokensLess {
    using is_transparent = void;
    std::size_t block_size;
    bool operator()(const std::unique_ptr<Node>& a, const std::unique_ptr<Node>& b) const;
    bool operator()(const std::unique_ptr<Node>& a, std::span<const Token> b) const;
    bool operator()(std::span<const Token> a, const std::unique_ptr<Node>& b) const;
  };
  using Children = std::set<std::unique_ptr<Node>, TokensLess>;

  struct Node {
    explicit Node(int block_size) : children(TokensLess{static_cast<std::size_t>(block_size)}) {}

    Node* parent = nullptr;         // nullptr: a root
    const Namespace* ns = nullptr;  // of a root
    std::int32_t first_block = 0;   // blocks above this node
    std::vector<Token> tokens;      // [n_blocks * block_size], the last block perhaps partial
    std::vector<BlockId> ids;       // [n_blocks, n_groups]
    std::vector<Digest> digests;    // [n_blocks]; a root's is [1], the parent of first blocks; partial: unset
    Children children;
  };

  /// A place between blocks: after `blocks` of this node's own blocks.
  struct Cursor {
    Node* node = nullptr;
    std::int32_t blocks = 0;
  };

  /// A match of `length` tokens; rows[i] are the n_groups ids of block i, the last perhaps matched in part.
  struct Match {
    std::int32_t length = 0;
    std::vector<const BlockId*> rows;
  };

  struct Config {
    int block_size = 0;
    std::vector<GroupSpec> groups;
    std::string model, layout;
    HashFn hash;
  };

  PrefixTree(BlockPool& pool, Config config);
  ~PrefixTree();

  /// The longest known prefix of `tokens` whose sliding windows have no hole. Const; compares tokens, never hashes.
  Match match(std::span<const Token> tokens, const Namespace& ns) const;

  /// The same, and why it ends there (explain.cpp). Const, but hashes and allocates: for people, not for each step.
  MatchEnd explain(std::span<const Token> tokens, const Namespace& ns) const;

  /// Where the first block of a namespace goes. Makes the root if need be: publish() must follow.
  Cursor root(const Namespace& ns);
  /// The place right after a block of the tree.
  Cursor after(BlockId full_group_id) const;

  /// A block after `at`: full, or the partial tail of a sequence that ends. `ids` [n_groups] are the publisher's. Where
  /// the tree has a full block already, `ids` are set to the tree's, and the publisher repoints its tables; where it
  /// covers a partial one, nothing happens. Returns the place after the block (partial: `at`).
  /// REQUIRES: 0 < tokens.size() <= block_size.
  Cursor publish(Cursor at, std::span<const Token> tokens, std::span<BlockId> ids);

  /// Lets go of a cached block: of the full group, the last block of a leaf with all its groups; of a sliding group,
  /// that block, which leaves a hole. Returns the number of blocks freed.
  int evict(BlockId id);

  /// A sliding block in the last window before a branch is worth keeping longer: every branch needs it.
  bool before_branch(BlockId id, int window) const;

  std::int64_t node_count() const { return node_count_; }

  // For check_integrity() and dump().
  const std::map<Namespace, std::unique_ptr<Node>>& roots() const { return roots_; }
  struct Place {
    Node* node = nullptr;
    std::int32_t block = 0;  // absolute index
  };
  Place place(BlockId id) const { return places_[static_cast<std::size_t>(id)]; }
  std::int32_t n_blocks(const Node& node) const {
    return static_cast<std::int32_t>(node.ids.size() / static_cast<std::size_t>(n_groups_));
  }
  /// Tokens of a node's block i: block_size of them, or fewer in a partial one.
  std::span<const Token> block_tokens(const Node& node, std::int32_t i) const;
  bool is_partial(const Node& node) const { return node.tokens.size() % static_cast<std::size_t>(bs_) != 0; }
  /// The full group's block before one of its blocks; the null block at the start of a text.
  BlockId block_before(BlockId id) const;

 private:
  struct Walk;
  Walk walk(const Node& root, std::span<const Token> tokens) const;
  const Digest& parent_digest(const Walk& at) const;
  std::int32_t evicted_until(Digest parent, std::int32_t block, std::span<const Token> tokens) const;

  struct Candidate {
    Node* child = nullptr;
    std::int32_t common = 0;  // tokens of its first block that agree
  };
  /// The child that shares the most tokens with `tokens` in its first block.
  Candidate best_child(const Node& node, std::span<const Token> tokens) const;
  /// Among the children whose first block has no hole, the one that shares the most. For a match that ends inside a
  /// block: siblings may begin with the same tokens, and one may have lost what another still has.
  const Node* best_whole_child(const Node& node, std::span<const Token> tokens) const;
  /// The tree has these tokens at block `i` of `node`: gives the publisher the tree's ids, takes its for holes.
  Cursor merge(Node& node, std::int32_t i, std::span<BlockId> ids);
  Cursor publish_block(Cursor at, std::span<const Token> tokens, std::span<BlockId> ids);
  /// What a publisher brings.
  struct Block {
    std::span<const Token> tokens;
    std::span<const BlockId> ids;
    Digest digest;
  };
  // Each of these gets its memory first: if it throws, the tree is as it was.
  Children::node_type new_node() const;
  void make_room(Node& node, std::size_t blocks) const;
  void append(Node& leaf, const Block& block);
  /// A block of an evicted path is back, and remembered: what stands before it was used as often.
  void raise_before(BlockId id, std::uint32_t uses);
  /// `child`: a new node with room for the block.
  void add_child(Node& parent, Children::node_type child, const Block& block);
  /// The last block of `leaf` is partial, and the new one continues it.
  void replace_partial(Node& leaf, const Block& block);
  /// Cuts a node in two: it keeps its first `blocks`, a new only child gets the rest. The caller adds another child.
  void split(Node& node, std::int32_t blocks);
  /// An inner node that is left with one child takes it in (invariant 2).
  void absorb_only_child(Node& node);
  void pop_last_block(Node& leaf);
  void remove_leaf(Node& leaf);
  void remove_root(Node& root);
  const BlockId* row(const Node& node, std::int32_t i) const {
    return &node.ids[static_cast<std::size_t>(i * n_groups_)];
  }
  void set_places(Node& node, std::int32_t from_block);
  /// Shortens a match until no window before its end has a hole.
  std::int32_t without_holes(std::int32_t length, const std::vector<const BlockId*>& rows) const;
  /// The sliding blocks in the last window before the end of `node`, which has just become a branch point.
  void warm_last_window(Node& node);

  BlockPool& pool_;
  Config config_;
  int bs_;
  int n_groups_;
  std::map<Namespace, std::unique_ptr<Node>> roots_;
  std::vector<Place> places_;  // by block id
  std::int64_t node_count_ = 0;
};

}  // namespace coppice::kv
