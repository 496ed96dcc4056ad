// Cache::check_integrity(): every count and every invariant of cache.h, recomputed from the holders. And dump().
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "kv/cache_impl.h"

namespace coppice::kv {

namespace {

/// What the holders say of each block, counted afresh.
struct Held {
  std::vector<std::int32_t> users;  // by block id
  std::vector<std::int32_t> group;  // by block id; -1: not in the tree
  std::int64_t nodes = 0;
};

using Node = PrefixTree::Node;

template <class F>
std::string for_each_node(const Node& node, F&& f) {
  if (std::string error = f(node); !error.empty()) return error;
  for (const auto& child : node.children) {
    if (std::string error = for_each_node(*child, f); !error.empty()) return error;
  }
  return {};
}

std::string check_node(const Cache::Impl& impl, const Node& node, Held& held) {
  const PrefixTree& tree = impl.tree;
  const std::int32_t blocks = tree.n_blocks(node);
  ++held.nodes;
  if (node.parent == nullptr) {
    if (blocks != 0 || node.children.empty()) return "a root has blocks, or no children";
  } else {
    if (blocks == 0) return "a node has no block";
    if (node.children.size() == 1) return "an inner node has one child";
    if (node.first_block != node.parent->first_block + tree.n_blocks(*node.parent))
      return "a node's first_block is wrong";
    if (impl.blocks_for(static_cast<std::int32_t>(node.tokens.size())) != blocks)
      return "a node's tokens don't fill its blocks";
    if (static_cast<std::int32_t>(node.digests.size()) != blocks) return "a node's digests don't match its blocks";
    if (tree.is_partial(node) && !node.children.empty()) return "an inner node ends in a partial block";
  }
  const Node* previous = nullptr;
  for (const auto& child : node.children) {
    if (child->parent != &node) return "a child names another parent";
    if (previous != nullptr) {
      const auto a = tree.block_tokens(*previous, 0), b = tree.block_tokens(*child, 0);
      if (!std::ranges::lexicographical_compare(a, b)) return "children are out of order";
      if (a.size() < b.size() && std::ranges::equal(a, b.first(a.size()))) {
        return "a partial leaf has a sibling that continues it";
      }
    }
    previous = child.get();
  }
  for (std::int32_t b = 0; b < blocks; ++b) {
    for (int g = 0; g < impl.n_groups(); ++g) {
      const BlockId id = node.ids[static_cast<std::size_t>(b * impl.n_groups() + g)];
      if (id == kNullBlock) {
        if (impl.config.groups[static_cast<std::size_t>(g)].kind == GroupKind::kFull) return "a hole in a full group";
        continue;
      }
      auto& group = held.group[static_cast<std::size_t>(id)];
      if (group != -1) return fmt::format("block {} is in the tree twice", id);
      group = g;
      if (tree.place(id).node != &node || tree.place(id).block != node.first_block + b) {
        return fmt::format("the place of block {} is wrong", id);
      }
      if (g > 0) continue;
      if (const BlockId before = tree.block_before(id);
          before != kNullBlock && impl.pool.order().uses(id) > impl.pool.order().uses(before)) {
        return fmt::format("block {} has more uses than {} before it", id, before);
      }
    }
  }
  return {};
}

std::string check_sequence(const Cache::Impl& impl, SeqId id, const Sequence& seq, Held& held) {
  const auto name = static_cast<std::uint64_t>(id);
  const int bs = impl.config.block_size;
  if (seq.cached_len > seq.computed_len || seq.computed_len > seq.len()) {
    return fmt::format("sequence {}: lengths {} <= {} <= {} don't hold", name, seq.cached_len, seq.computed_len,
                       seq.len());
  }
  if (seq.published != (impl.config.share ? seq.computed_len / bs : 0)) {
    return fmt::format("sequence {}: {} blocks published of {} tokens", name, seq.published, seq.computed_len);
  }
  for (std::size_t g = 0; g < seq.tables.size(); ++g) {
    const GroupSpec& group = impl.config.groups[g];
    const auto ids = seq.tables[g].ids();
    if (static_cast<std::int32_t>(ids.size()) != impl.blocks_for(seq.len())) {
      return fmt::format("sequence {}: group {} has {} blocks for {} tokens", name, g, ids.size(), seq.len());
    }
    const std::int32_t begin = impl.window_begin(group, seq.computed_len);
    for (std::size_t b = 0; b < ids.size(); ++b) {
      if (ids[b] == kNullBlock) {
        if (static_cast<std::int32_t>(b) >= begin)
          return fmt::format("sequence {}: block {} of group {} is missing", name, b, g);
        continue;
      }
      ++held.users[static_cast<std::size_t>(ids[b])];
      if (static_cast<std::int32_t>(b + 1) * bs > seq.computed_len && seq.len() > seq.computed_len &&
          impl.pool.ref_count(ids[b]) != 1) {
        return fmt::format("sequence {}: writable block {} has {} holders", name, ids[b], impl.pool.ref_count(ids[b]));
      }
    }
  }
  // Invariant 6, upwards from the last published block.
  if (seq.published > 0) {
    PrefixTree::Place at = impl.tree.place(seq.tables[0][static_cast<std::size_t>(seq.published - 1)]);
    for (std::int32_t b = seq.published - 1; b >= 0; --b) {
      if (at.node != nullptr && b < at.node->first_block) at.node = at.node->parent;
      if (at.node == nullptr) return fmt::format("sequence {}: published block {} is not in the tree", name, b);
      const std::int32_t i = b - at.node->first_block;
      if (at.node->ids[static_cast<std::size_t>(i * impl.n_groups())] != seq.tables[0][static_cast<std::size_t>(b)]) {
        return fmt::format("sequence {}: published block {} is not the tree's", name, b);
      }
      const auto tokens = impl.tree.block_tokens(*at.node, i);
      if (!std::ranges::equal(tokens, std::span(seq.tokens).subspan(static_cast<std::size_t>(b * bs), tokens.size()))) {
        return fmt::format("sequence {}: published block {} has other tokens", name, b);
      }
    }
  }
  return {};
}

std::string check_counts(const Cache::Impl& impl, const Held& held) {
  const BlockPool& pool = impl.pool;
  std::int64_t in_use = 0, cached = 0, shared = 0, max_users = 0;
  for (BlockId id = 1; id < impl.config.num_blocks; ++id) {
    const auto i = static_cast<std::size_t>(id);
    if (pool.users(id) != held.users[i] || pool.in_tree(id) != (held.group[i] >= 0)) {
      return fmt::format("block {}: counts say {} users{}, holders say {}{}", id, pool.users(id),
                         pool.in_tree(id) ? " + tree" : "", held.users[i], held.group[i] >= 0 ? " + tree" : "");
    }
    in_use += held.users[i] > 0;
    shared += held.users[i] > 1;
    max_users = std::max<std::int64_t>(max_users, held.users[i]);
    const bool only_tree = held.users[i] == 0 && held.group[i] >= 0;
    cached += only_tree;
    if (pool.order().contains(id) != only_tree)
      return fmt::format("block {}: in the eviction order by mistake, or not", id);
  }
  if (in_use != pool.in_use() || cached != pool.cached() || shared != pool.shared() || max_users != pool.max_users()) {
    return fmt::format("figures: in_use {} cached {} shared {} max {}, holders say {} {} {} {}", pool.in_use(),
                       pool.cached(), pool.shared(), pool.max_users(), in_use, cached, shared, max_users);
  }
  if (pool.free() + in_use + cached != pool.total()) return "free + cached + in_use is not total";
  std::int64_t listed = 0;
  for (int g = 0; g < impl.n_groups(); ++g) {
    for (std::uint32_t uses = 1; uses <= EvictionOrder::kMostUses; ++uses) {
      std::uint64_t last_use = 0;
      for (BlockId id = pool.order().coldest_of(g, uses); id != kNullBlock; id = pool.order().hotter(id)) {
        if (held.group[static_cast<std::size_t>(id)] != g)
          return fmt::format("block {} is in another group's order", id);
        if (g == 0 && pool.order().uses(id) != uses) return fmt::format("block {} is listed with {} uses", id, uses);
        if (pool.order().last_use(id) < last_use) return fmt::format("block {} is listed too late", id);
        last_use = pool.order().last_use(id);
        ++listed;
      }
    }
  }
  if (listed != cached) return "the eviction orders don't hold exactly the cached blocks";
  if (const BlockId coldest = pool.order().next(0); coldest != kNullBlock) {
    const PrefixTree::Place at = impl.tree.place(coldest);
    if (!at.node->children.empty() || at.block + 1 != at.node->first_block + impl.tree.n_blocks(*at.node)) {
      return fmt::format("the coldest full block {} is not the end of a leaf", coldest);
    }
  }
  return {};
}

}  // namespace

std::string Cache::check_integrity() const {
  const Impl& impl = *impl_;
  Held held;
  held.users.assign(static_cast<std::size_t>(impl.config.num_blocks), 0);
  held.group.assign(static_cast<std::size_t>(impl.config.num_blocks), -1);
  for (const auto& [ns, root] : impl.tree.roots()) {
    std::string error = for_each_node(*root, [&](const Node& node) { return check_node(impl, node, held); });
    if (!error.empty()) return error;
  }
  if (held.nodes != impl.tree.node_count()) return "the tree's node count is wrong";
  std::int64_t reserved = 0;
  for (const auto& [id, seq] : impl.sequences) {
    if (std::string error = check_sequence(impl, id, seq, held); !error.empty()) return error;
    if (seq.reserved < 0) return "a negative reservation";
    reserved += seq.reserved;
  }
  for (const auto& [id, set] : impl.detached) {
    for (const BlockTable& table : set.tables) {
      for (const BlockId block : table.ids()) held.users[static_cast<std::size_t>(block)] += block != kNullBlock;
    }
  }
  if (reserved != impl.reserved) return fmt::format("reserved {}, sequences say {}", impl.reserved, reserved);
  if (std::string error = check_counts(impl, held); !error.empty()) return error;
  if (reserved > impl.pool.free() + impl.pool.cached()) return "more is reserved than can be had";
  return {};
}

std::string Cache::dump() const {
  const Impl& impl = *impl_;
  std::string out;
  for (const auto& [ns, root] : impl.tree.roots()) {
    out += fmt::format("root salt='{}' adapter='{}'\n", ns.salt, ns.adapter);
    for_each_node(*root, [&](const Node& node) {
      if (node.parent == nullptr) return std::string{};
      int depth = 0;
      for (const Node* n = node.parent; n != nullptr; n = n->parent) ++depth;
      out += std::string(static_cast<std::size_t>(2 * depth), ' ');
      for (std::int32_t b = 0; b < impl.tree.n_blocks(node); ++b) {
        out += fmt::format("[{}", fmt::join(impl.tree.block_tokens(node, b), " "));
        for (int g = 0; g < impl.n_groups(); ++g) {
          const BlockId id = node.ids[static_cast<std::size_t>(b * impl.n_groups() + g)];
          out += id == kNullBlock ? " |hole" : fmt::format(" |{}x{}", id, impl.pool.users(id));
        }
        out += "] ";
      }
      out += '\n';
      return std::string{};
    });
  }
  for (const auto& [id, seq] : impl.sequences) {
    out += fmt::format("sequence {}: {} cached, {} computed of [{}], {} reserved", static_cast<std::uint64_t>(id),
                       seq.cached_len, seq.computed_len, fmt::join(seq.tokens, " "), seq.reserved);
    for (const BlockTable& table : seq.tables) out += fmt::format(" |{}", fmt::join(table.ids(), " "));
    out += '\n';
  }
  return out;
}

}  // namespace coppice::kv
