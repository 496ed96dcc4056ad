// picture(): the tree of one namespace for people to look at: its liveliest part, cut to a size. Nothing is decided by
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kv/digest.h"
#include "kv/text.h"
#include "kv/types.h"

namespace coppice::kv {

class BlockPool;
class PrefixTree;

struct PictureLimits {
  int nodes = 256;       ///< in the picture
  int depth = 64;        ///< of nodes, the first has 1
  int head_tokens = 16;  ///< PictureNode::head, besides those in common
};

/// A run of tokens that all who come here share, and behind which texts part.
struct PictureNode {
  std::uint64_t serial = 0;   ///< of no other node in the cache's life. When a node is split, its first part keeps it
  std::int32_t parent = -1;   ///< index into the nodes; -1: the text begins here
  std::int32_t begin = 0;     ///< tokens before this node
  std::int32_t tokens = 0;    ///< in it
  std::int32_t common = 0;    ///< of these, that it begins with as a sibling does: nodes part at block borders
  Text head;                  ///< the first of them: those in common, and some of its own
  std::int32_t stored = 0;    ///< of these, in blocks that are kept outside of the pool, too
  std::int32_t holders = 0;   ///< sequences and pins that hold its first block
  std::uint32_t hits = 0;     ///< requests that found tokens of it, since it was made or split off
  double last_used = 0;       ///< when a request last began on it, or computed tokens of it: Cache::set_time()
  std::int32_t left_out = 0;  ///< children that are not in the picture
};

/// Parents come before their children, and siblings in the order of their tokens.
struct TreePicture {
  std::vector<PictureNode> nodes;
  std::int32_t left_out = 0;  ///< first nodes of texts that are not in the picture
};

/// Takes the liveliest first: those that are held, by most; then those used last. A parent is never less lively than
/// its child, so a picture is connected. O(limits.nodes * log), and looks at no more than kMostLooked nodes.
TreePicture picture(const PrefixTree& tree, const BlockPool& pool, const Namespace& ns, const PictureLimits& limits);

/// About a millisecond. Of a root with more children the rest is left out unseen.
inline constexpr std::size_t kMostLooked = 16384;

}  // namespace coppice::kv
