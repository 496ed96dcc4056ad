#include "kv/cache_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

namespace coppice::kv {

namespace {

using Error = std::string;  // empty: none

template <class F>
Error for_each_node(const TreeNode& node, F&& f) {
  if (Error error = f(node); !error.empty()) return error;
  for (const auto& child : node.children) {
    if (Error error = for_each_node(*child, f); !error.empty()) return error;
  }
  return {};
}

// text.h's invariant.
Error check_text(TextView text) {
  std::size_t at = 0;
  const auto tokens_up_to = [&](std::size_t end) {
    bool tokens = true;
    for (; at < end; ++at) tokens &= text[at].token().has_value();
    return tokens;
  };
  for (const MediumSpan& span : text.spans()) {
    const auto first = static_cast<std::size_t>(span.first);
    if (span.n < 1 || first < at || span.index < 0 || span.index + span.n > span.medium.rows)
      return "a text's spans are wrong";
    if (!tokens_up_to(first)) return "a piece of no medium";
    for (std::int32_t i = 0; i < span.n; ++i, ++at)
      if (text[at] != Symbol(span.medium, span.index + i)) return "a piece has another medium's symbol";
  }
  return tokens_up_to(text.size()) ? Error{} : "a piece of no medium";
}

/// One run of the check. Counts afresh, from the holders, who holds which block.
class Check {
 public:
  explicit Check(const CacheView& cache)
      : cache_(cache), bs_(cache.config.block_size), users_(cache.config.num_blocks, 0), group_(users_.size(), -1) {
    const auto& groups = cache.config.groups;
    for (const GroupSpec& group : groups) {
      const auto first = std::ranges::find_if(groups, [&](const GroupSpec& g) { return g.keeps_as(group); });
      first_alike_.push_back(static_cast<int>(first - groups.begin()));
    }
  }

  Error run();

 private:
  Error check_node(const TreeNode& node);
  Error check_children(const TreeNode& node) const;
  Error check_blocks(const TreeNode& node);
  Error check_alike(int group, BlockId block, BlockId first) const;
  Error check_sequence(const CacheSequence& seq);
  Error check_published(const CacheSequence& seq) const;
  Error check_states();
  Error check_state(UnitId id, const StateTable::Unit& unit);
  Error check_pin(const PinTable::Pin& pin);
  Error check_pins();
  Error check_counts() const;
  Error check_order() const;

  void count(const StateRef& state) {
    for (const BlockId page : state.pages()) ++users_[page];
  }

  const CacheView& cache_;
  const int bs_;
  std::vector<std::int32_t> users_;  // by block id
  std::vector<std::int32_t> group_;  // by block id; -1: not in the tree
  std::vector<int> first_alike_;     // by group: the first one with its window
  std::int64_t nodes_ = 0;
};

Error Check::run() {
  for (const auto& [ns, root] : cache_.tree.roots()) {
    Error error = for_each_node(*root, [&](const TreeNode& node) { return check_node(node); });
    if (!error.empty()) return error;
  }
  if (nodes_ != cache_.tree.node_count()) return "the tree's node count is wrong";

  std::int64_t reserved = 0;
  for (const auto& [id, seq] : cache_.sequences) {
    if (Error error = check_sequence(seq); !error.empty()) {
      return fmt::format("sequence {}: {}", static_cast<std::uint64_t>(id), error);
    }
    reserved += seq.reserved;
  }
  if (Error error = check_pins(); !error.empty()) return error;
  if (Error error = check_states(); !error.empty()) return error;
  if (reserved != cache_.reserved) return fmt::format("reserved {}, sequences say {}", cache_.reserved, reserved);
  if (Error error = check_counts(); !error.empty()) return error;
  if (reserved > cache_.pool.free() + cache_.pool.cached()) return "more is reserved than can be had";
  return check_order();
}

// --- the tree -------------------------------------------------------------------------------------------------------

Error Check::check_node(const TreeNode& node) {
  ++nodes_;
  const std::int32_t blocks = node.n_blocks();
  if (node.parent == nullptr) {
    if (blocks != 0 || node.children.empty()) return "a root has blocks, or no children";
  } else {
    if (blocks == 0) return "a node has no block";
    if (node.children.size() == 1) return "an inner node has one child";
    if (node.first_block != node.parent->end_block()) return "a node's first_block is wrong";
    const auto n_tokens = static_cast<std::int32_t>(node.tokens.size());
    if (cache_.config.blocks_for(n_tokens) != blocks) return "a node's tokens don't fill its blocks";
    if (static_cast<std::int32_t>(node.digests.size()) != blocks) return "a node's digests don't match its blocks";
    if (node.is_partial() && !node.children.empty()) return "an inner node ends in a partial block";
  }
  if (Error error = check_text(node.tokens); !error.empty()) return error;
  if (Error error = check_children(node); !error.empty()) return error;
  return check_blocks(node);
}

Error Check::check_children(const TreeNode& node) const {
  const TreeNode* previous = nullptr;
  for (const auto& child : node.children) {
    if (child->parent != &node) return "a child names another parent";
    if (previous != nullptr) {
      const auto a = previous->block_tokens(0), b = child->block_tokens(0);
      if (!(a < b)) return "children are out of order";
      if (a.size() < b.size() && a == b.first(a.size())) {
        return "a partial leaf has a sibling that continues it";
      }
    }
    previous = child.get();
  }
  return {};
}

Error Check::check_blocks(const TreeNode& node) {
  const PrefixTree& tree = cache_.tree;
  const EvictionOrder& order = cache_.pool.order();
  for (std::int32_t b = 0; b < node.n_blocks(); ++b) {
    for (int g = 0; g < cache_.config.n_groups(); ++g) {
      const BlockId id = node.row(b)[g];
      if (Error error = check_alike(g, id, node.row(b)[first_alike_[g]]); !error.empty()) return error;
      if (id == kNullBlock) {
        if (cache_.config.groups[g].kind == GroupKind::kFull) return "a hole in a full group";
        continue;
      }
      if (group_[id] != -1) return fmt::format("block {} is in the tree twice", id);
      group_[id] = g;
      if (tree.place(id).node != &node || tree.place(id).block != node.first_block + b) {
        return fmt::format("the place of block {} is wrong", id);
      }
      if (g > 0) continue;
      if (const BlockId before = tree.block_before(id); before != kNullBlock && order.uses(id) > order.uses(before)) {
        return fmt::format("block {} has more uses than {} before it", id, before);
      }
    }
  }
  return {};
}

// cache.h's invariant 8, for one position.
Error Check::check_alike(int group, BlockId block, BlockId first) const {
  const BlockPool& pool = cache_.pool;
  if ((block == kNullBlock) == (first == kNullBlock) &&
      (block == kNullBlock || pool.users(block) == pool.users(first))) {
    return {};
  }
  return fmt::format("block {} of group {} and {} of group {} have one window, and other users", block, group, first,
                     first_alike_[group]);
}

// --- sequences ------------------------------------------------------------------------------------------------------

Error Check::check_sequence(const CacheSequence& seq) {
  const CacheConfig& config = cache_.config;
  if (seq.reserved < 0) return "a negative reservation";
  if (seq.cached_len > seq.computed_len() || seq.computed_len() > seq.len) {
    return fmt::format("lengths {} <= {} <= {} don't hold", seq.cached_len, seq.computed_len(), seq.len);
  }
  if (seq.published != (config.share ? seq.computed_len() / bs_ : 0)) {
    return fmt::format("{} blocks published of {} tokens", seq.published, seq.computed_len());
  }
  const auto behind = config.blocks_for(seq.len) - config.blocks_for(seq.computed_len());
  if (seq.unpromised < 0 || seq.unpromised > behind * config.n_groups()) {
    return fmt::format("{} of {} blocks behind the computed ones were not promised", seq.unpromised, behind);
  }
  if (Error error = check_text(seq.tokens); !error.empty()) return error;
  if (!seq.may_be_cut(seq.computed_len()) || !seq.may_be_cut(seq.len))
    return "a length inside a medium that can't be cut";
  count(seq.states.now);
  count(seq.states.next);
  const bool stepping = seq.len > seq.computed_len();
  if (cache_.states.enabled()) {
    if (static_cast<bool>(seq.states.now) != (seq.computed_len() > 0)) return "a state without tokens, or none of them";
    const StateRef& written = seq.states.next ? seq.states.next : seq.states.now;
    if (stepping && (!written || written.frozen())) return "others hold the state that its step writes";
    if (!stepping && seq.states.next) return "a state that no step writes";
  }
  if (seq.awaits && !stepping) return "it awaits nothing";
  for (int g = 0; g < config.n_groups(); ++g) {
    const auto ids = seq.tables[g].ids();
    if (static_cast<std::int32_t>(ids.size()) != config.blocks_for(seq.len)) {
      return fmt::format("group {} has {} blocks for {} tokens", g, ids.size(), seq.len);
    }
    const std::int32_t begin = config.first_needed_block(g, seq.computed_len());
    for (std::int32_t b = 0; b < std::ssize(ids); ++b) {
      const BlockId block = ids[b];
      if (Error error = check_alike(g, block, seq.tables[first_alike_[g]][b]); !error.empty()) return error;
      if (block == kNullBlock) {
        const bool in_gap = seq.awaits && b >= seq.computed_len() / bs_ && b < config.first_needed_block(g, seq.len);
        if (b >= begin && !in_gap) return fmt::format("block {} of group {} is missing", b, g);
        continue;
      }
      ++users_[block];
      const bool writable = stepping && (b + 1) * bs_ > seq.computed_len();
      if (const std::int32_t holders = cache_.pool.ref_count(block); writable && holders != 1) {
        return fmt::format("writable block {} has {} holders", block, holders);
      }
    }
  }
  return check_published(seq);
}

// cache.h's invariant 6, upwards from the last published block.
Error Check::check_published(const CacheSequence& seq) const {
  if (seq.published == 0) return {};
  const TreeNode* node = cache_.tree.place(seq.tables[0][seq.published - 1]).node;
  for (std::int32_t b = seq.published - 1; b >= 0; --b) {
    if (node != nullptr && b < node->first_block) node = node->parent;
    if (node == nullptr) return fmt::format("published block {} is not in the tree", b);
    const std::int32_t i = b - node->first_block;
    if (node->row(i)[0] != seq.tables[0][b]) return fmt::format("published block {} is not the tree's", b);
    const auto tokens = node->block_tokens(i);
    if (!(tokens == seq.tokens.view().subspan(static_cast<std::size_t>(b * bs_), tokens.size()))) {
      return fmt::format("published block {} has other tokens", b);
    }
  }
  return {};
}

// --- pins -----------------------------------------------------------------------------------------------------------

Error Check::check_pin(const PinTable::Pin& pin) {
  count(pin.state);
  const auto blocks = static_cast<std::int32_t>(pin.tables[0].size());
  if (blocks == 0) return "no block";
  for (int g = 0; g < cache_.config.n_groups(); ++g) {
    const BlockTable& table = pin.tables[g];
    if (std::ssize(table.ids()) != blocks)
      return fmt::format("group {} has {} blocks, not {}", g, table.size(), blocks);
    const std::int32_t needed = cache_.config.first_needed_block(g, blocks * bs_);
    for (std::int32_t b = 0; b < blocks; ++b) {
      const BlockId id = table[b];
      if (Error error = check_alike(g, id, pin.tables[first_alike_[g]][b]); !error.empty()) return error;
      if (id == kNullBlock) {
        if (b >= needed) return fmt::format("block {} of group {} is missing", b, g);
        continue;
      }
      ++users_[id];
      if (group_[id] != g) return fmt::format("block {} of group {} is not the tree's", b, g);
      const PrefixTree::Place at = cache_.tree.place(id);
      if (at.block != b) return fmt::format("block {} of group {} stands at {} in the tree", b, g, at.block);
      const BlockId before = cache_.tree.block_before(id);
      if (g == 0 && before != (b == 0 ? kNullBlock : table[b - 1])) return fmt::format("block {} continues another", b);
    }
  }
  return {};
}

Error Check::check_pins() {
  std::vector<std::int32_t> pins_of(users_.size(), 0);
  for (const auto& [id, pin] : cache_.pins.pins()) {
    if (Error error = check_pin(pin); !error.empty()) {
      return fmt::format("pin {}: {}", static_cast<std::uint64_t>(id), error);
    }
    pin.for_each_held([&](BlockId block) { ++pins_of[block]; });
  }
  for (BlockId id = 1; id < cache_.config.num_blocks; ++id) {
    if (cache_.pins.count(id) != pins_of[id]) {
      return fmt::format("block {}: {} pins counted, {} hold it", id, cache_.pins.count(id), pins_of[id]);
    }
  }
  const auto held = std::ranges::count_if(pins_of, [](std::int32_t pins) { return pins > 0; });
  if (held != cache_.pins.blocks()) return fmt::format("{} pinned blocks, {} counted", held, cache_.pins.blocks());
  return {};
}

// --- states ---------------------------------------------------------------------------------------------------------

Error Check::check_state(UnitId id, const StateTable::Unit& unit) {
  const BlockPool& pool = cache_.pool;
  if (std::ssize(unit.pages) != cache_.config.state_pages) return fmt::format("{} pages", unit.pages.size());
  for (const BlockId page : unit.pages) {
    if (users_[page] != users_[unit.pages.front()]) return "its pages have different users";
    if (pool.in_tree(page) != (unit.anchor != kNullBlock)) return "the tree holds a part of it";
    if (cache_.tree.place(page).node != nullptr || group_[page] >= 0) return "one of its pages is a block, too";
    if (unit.anchor != kNullBlock) group_[page] = cache_.config.n_groups();
  }
  if (unit.anchor == kNullBlock) return {};
  const PrefixTree::Place at = cache_.tree.place(unit.anchor);
  if (at.node == nullptr) return "it stands behind no block";
  const std::int32_t end = at.block - at.node->first_block + 1;
  if (at.node->row(end - 1)[0] != unit.anchor || std::ssize(at.node->block_tokens(end - 1)) != bs_)
    return "it stands behind no full block";
  if (std::ssize(unit.rest) >= bs_) return "it has a whole block of its own";
  const auto begins = [&](TextView block) {
    return block.size() >= unit.rest.size() && unit.rest.view() == block.first(unit.rest.size());
  };
  const bool inside = end < at.node->n_blocks();
  const bool founded = unit.rest.empty() || (inside ? begins(at.node->block_tokens(end))
                                                    : std::ranges::any_of(at.node->children, [&](const auto& child) {
                                                        return begins(child->block_tokens(0));
                                                      }));
  if (!founded) return "no block has its own tokens";
  bool listed = false;
  for (UnitId other = cache_.states.first_behind(unit.anchor); other != kNoUnit;
       other = cache_.states.all()[other].next) {
    listed |= other == id;
    if (other != id && cache_.states.all()[other].rest == unit.rest) return "another one stands at its place";
  }
  return listed ? Error{} : "its anchor doesn't know it";
}

Error Check::check_states() {
  std::int64_t cached = 0, in_use = 0;
  for (UnitId id = 0; const StateTable::Unit& unit : cache_.states.all()) {
    const UnitId this_id = id++;
    if (unit.pages.empty()) continue;
    if (Error error = check_state(this_id, unit); !error.empty()) return fmt::format("state {}: {}", this_id, error);
    ++(users_[unit.pages.front()] == 0 ? cached : in_use);
  }
  if (cached != cache_.states.cached() || in_use != cache_.states.in_use()) {
    return fmt::format("{} states are cached and {} in use, counted {} and {}", cached, in_use, cache_.states.cached(),
                       cache_.states.in_use());
  }
  return {};
}

// --- the pool and the eviction order --------------------------------------------------------------------------------

Error Check::check_counts() const {
  const BlockPool& pool = cache_.pool;
  std::int64_t in_use = 0, cached = 0, shared = 0, max_users = 0;
  for (BlockId id = 1; id < cache_.config.num_blocks; ++id) {
    const bool in_tree = group_[id] >= 0;
    if (pool.users(id) != users_[id] || pool.in_tree(id) != in_tree) {
      return fmt::format("block {}: counts say {} users{}, holders say {}{}", id, pool.users(id),
                         pool.in_tree(id) ? " + tree" : "", users_[id], in_tree ? " + tree" : "");
    }
    in_use += users_[id] > 0;
    shared += users_[id] > 1;
    max_users = std::max<std::int64_t>(max_users, users_[id]);
    const bool only_tree = users_[id] == 0 && in_tree;
    cached += only_tree;
    if (pool.order().contains(id) != only_tree)
      return fmt::format("block {}: in the eviction order by mistake, or not", id);
  }
  if (in_use != pool.in_use() || cached != pool.cached() || shared != pool.shared() || max_users != pool.max_users()) {
    return fmt::format("figures: in_use {} cached {} shared {} max {}, holders say {} {} {} {}", pool.in_use(),
                       pool.cached(), pool.shared(), pool.max_users(), in_use, cached, shared, max_users);
  }
  if (pool.free() + in_use + cached != pool.total()) return "free + cached + in_use is not total";
  return {};
}

Error Check::check_order() const {
  const EvictionOrder& order = cache_.pool.order();
  std::int64_t listed = 0;
  for (int g = 0; g < cache_.config.n_groups() + (cache_.states.enabled() ? 1 : 0); ++g) {
    for (std::uint32_t uses = 1; uses <= EvictionOrder::kMostUses; ++uses) {
      std::uint64_t last_use = 0;
      for (BlockId id = order.coldest_of(g, uses); id != kNullBlock; id = order.hotter(id)) {
        if (group_[id] != g) return fmt::format("block {} is in another group's order", id);
        if (g == 0 && order.uses(id) != uses) return fmt::format("block {} is listed with {} uses", id, uses);
        if (order.last_use(id) < last_use) return fmt::format("block {} is listed too late", id);
        last_use = order.last_use(id);
        ++listed;
      }
    }
  }
  if (listed != cache_.pool.cached()) return "the eviction orders don't hold exactly the cached blocks";
  if (const BlockId coldest = order.next(0); coldest != kNullBlock) {
    const PrefixTree::Place at = cache_.tree.place(coldest);
    if (!at.node->children.empty() || at.block + 1 != at.node->end_block()) {
      return fmt::format("the coldest full block {} is not the end of a leaf", coldest);
    }
  }
  return {};
}

}  // namespace

std::string check_integrity(const CacheView& cache) {
  return Check(cache).run();
}

}  // namespace coppice::kv
