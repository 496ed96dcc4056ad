#include "kv/prefix_tree.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "kv/faults.h"
#include "kv/reserve_more.h"

namespace coppice::kv {

namespace {

/// Length of the common prefix. Whole runs by memcmp: a 32k-token prompt is matched in microseconds.
std::int32_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  constexpr std::size_t kRun = 64;
  const std::size_t n = std::min(a.size(), b.size());
  std::size_t i = 0;
  while (i + kRun <= n && std::memcmp(&a[i], &b[i], kRun * sizeof(Token)) == 0) i += kRun;
  while (i < n && a[i] == b[i]) ++i;
  return static_cast<std::int32_t>(i);
}

std::span<const Token> first_block(const std::vector<Token>& tokens, std::size_t block_size) {
  return std::span(tokens).first(std::min(tokens.size(), block_size));
}

bool less(std::span<const Token> a, std::span<const Token> b) {
  return std::ranges::lexicographical_compare(a, b);
}

template <class T>
void move_tail(std::vector<T>& from, std::size_t begin, std::vector<T>& to) {
  to.assign(from.begin() + static_cast<std::ptrdiff_t>(begin), from.end());
  from.resize(begin);
}

}  // namespace

bool PrefixTree::TokensLess::operator()(const std::unique_ptr<Node>& a, const std::unique_ptr<Node>& b) const {
  return less(first_block(a->tokens, block_size), first_block(b->tokens, block_size));
}
bool PrefixTree::TokensLess::operator()(const std::unique_ptr<Node>& a, std::span<const Token> b) const {
  return less(first_block(a->tokens, block_size), b);
}
bool PrefixTree::TokensLess::operator()(std::span<const Token> a, const std::unique_ptr<Node>& b) const {
  return less(a, first_block(b->tokens, block_size));
}

PrefixTree::PrefixTree(BlockPool& pool, Config config)
    : pool_(pool),
      config_(std::move(config)),
      bs_(config_.block_size),
      n_groups_(static_cast<int>(config_.groups.size())),
      places_(static_cast<std::size_t>(pool.total() + 1)) {}

PrefixTree::~PrefixTree() = default;

// --- matching -------------------------------------------------------------------------------------------------------

PrefixTree::Candidate PrefixTree::best_child(const Node& node, std::span<const Token> tokens) const {
  const auto wanted = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(bs_)));
  const auto after = node.children.lower_bound(wanted);
  Candidate best;
  const auto consider = [&](const std::unique_ptr<Node>& child) {
    const std::int32_t common = common_prefix(block_tokens(*child, 0), wanted);
    if (common > best.common) best = {child.get(), common};
  };
  if (after != node.children.end()) consider(*after);
  if (after != node.children.begin()) consider(*std::prev(after));
  return best;
}

const PrefixTree::Node* PrefixTree::best_whole_child(const Node& node, std::span<const Token> tokens) const {
  const auto wanted = tokens.first(std::min(tokens.size(), static_cast<std::size_t>(bs_)));
  const auto common = [&](Children::const_iterator it) { return common_prefix(block_tokens(**it, 0), wanted); };
  // Outwards from the place where the wanted tokens would stand: what siblings share with them only gets less.
  auto after = node.children.lower_bound(wanted);
  auto before = after;
  for (;;) {
    const std::int32_t right = after == node.children.end() ? 0 : common(after);
    const std::int32_t left = before == node.children.begin() ? 0 : common(std::prev(before));
    if (std::max(left, right) == 0) return nullptr;
    const Node& child = right >= left ? **after++ : **--before;
    if (std::find(child.ids.begin(), child.ids.begin() + n_groups_, kNullBlock) == child.ids.begin() + n_groups_) {
      return &child;
    }
  }
}

PrefixTree::Match PrefixTree::match(std::span<const Token> tokens, const Namespace& ns) const {
  Match match;
  const auto root = roots_.find(fault(Fault::kIgnoreSalt) ? Namespace{} : ns);
  if (root == roots_.end()) return match;

  match.rows.reserve(tokens.size() / static_cast<std::size_t>(bs_) + 1);
  const Node* node = root->second.get();
  auto rest = tokens;
  while (!rest.empty()) {
    const Candidate best = best_child(*node, rest);
    if (best.child == nullptr) break;
    const Node* child = best.child;
    if (best.common < bs_ && n_groups_ > 1) {  // ends inside this block: then it must have no hole
      if (const Node* whole = best_whole_child(*node, rest)) child = whole;
    }
    const std::int32_t common = common_prefix(child->tokens, rest);
    for (std::int32_t i = 0; i * bs_ < common; ++i) match.rows.push_back(row(*child, i));
    match.length += common;
    if (common < static_cast<std::int32_t>(child->tokens.size()) || is_partial(*child)) break;
    rest = rest.subspan(static_cast<std::size_t>(common));
    node = child;
  }
  match.length = without_holes(match.length, match.rows);
  match.rows.resize(static_cast<std::size_t>((match.length + bs_ - 1) / bs_));
  if (fault(Fault::kMatchOneLong) && match.length % bs_ != 0 &&
      static_cast<std::size_t>(match.length) < tokens.size()) {
    ++match.length;
  }
  return match;
}

std::int32_t PrefixTree::without_holes(std::int32_t length, const std::vector<const BlockId*>& rows) const {
  if (fault(Fault::kIgnoreHole)) return length;
  for (bool shorter = true; shorter && length > 0;) {
    shorter = false;
    for (int g = 1; g < n_groups_; ++g) {
      const GroupSpec& group = config_.groups[static_cast<std::size_t>(g)];
      if (group.kind != GroupKind::kSliding) continue;
      const std::int32_t begin = std::max(0, length - group.window) / bs_;
      for (std::int32_t b = (length - 1) / bs_; b >= begin && length > 0; --b) {
        if (rows[static_cast<std::size_t>(b)][g] != kNullBlock) continue;
        length = b * bs_;
        shorter = true;
        break;
      }
    }
  }
  return length;
}

// --- publishing -----------------------------------------------------------------------------------------------------

PrefixTree::Cursor PrefixTree::root(const Namespace& wanted) {
  const Namespace& ns = fault(Fault::kIgnoreSalt) ? Namespace{} : wanted;
  auto it = roots_.find(ns);
  if (it == roots_.end()) {
    auto node = std::make_unique<Node>(bs_);
    node->digests.push_back(root_digest(config_.hash, config_.model, config_.layout, ns));
    it = roots_.emplace(ns, std::move(node)).first;
    it->second->ns = &it->first;
    ++node_count_;
  }
  return {it->second.get(), 0};
}

PrefixTree::Cursor PrefixTree::after(BlockId id) const {
  const Place at = place(id);
  assert(at.node != nullptr);
  return {at.node, at.block - at.node->first_block + 1};
}

PrefixTree::Cursor PrefixTree::publish(Cursor at, std::span<const Token> tokens, std::span<BlockId> ids) {
  try {
    return publish_block(at, tokens, ids);
  } catch (...) {
    if (at.node->ns != nullptr && at.node->children.empty()) remove_root(*at.node);  // made for this block
    throw;
  }
}

PrefixTree::Cursor PrefixTree::publish_block(Cursor at, std::span<const Token> tokens, std::span<BlockId> ids) {
  const auto size = static_cast<std::int32_t>(tokens.size());
  const auto covered = [&](Node& node, std::int32_t i) { return size == bs_ ? merge(node, i, ids) : at; };
  Node& node = *at.node;

  // A partial block has no identity yet: it can be found by tokens only.
  const auto block = [&] {
    const Digest& parent = node.digests[static_cast<std::size_t>(std::max(at.blocks - 1, 0))];
    return Block{tokens, ids, size == bs_ ? block_digest(config_.hash, parent, tokens) : Digest{}};
  };
  bool inside = false;  // of this node: it has other blocks here

  if (at.blocks < n_blocks(node)) {
    const auto next = block_tokens(node, at.blocks);
    const std::int32_t common = common_prefix(next, tokens);
    if (common == size) return covered(node, at.blocks);
    if (common == static_cast<std::int32_t>(next.size())) {
      replace_partial(node, block());
      return {&node, at.blocks + 1};
    }
    inside = true;
  } else if (const Candidate best = best_child(node, tokens); best.child != nullptr) {
    if (best.common == size) return covered(*best.child, 0);
    if (best.common == static_cast<std::int32_t>(block_tokens(*best.child, 0).size())) {
      replace_partial(*best.child, block());
      return {best.child, 1};
    }
  }

  const Block fresh = block();
  if (!inside && node.children.empty() && node.parent != nullptr) {
    append(node, fresh);
    return {&node, at.blocks + 1};
  }
  auto child = new_node();
  make_room(*child.value(), 1);
  if (inside) split(node, at.blocks);
  add_child(node, std::move(child), fresh);
  return after(ids[0]);
}

PrefixTree::Cursor PrefixTree::merge(Node& node, std::int32_t i, std::span<BlockId> ids) {
  for (int g = 0; g < n_groups_; ++g) {
    BlockId& mine = ids[static_cast<std::size_t>(g)];
    BlockId& theirs = node.ids[static_cast<std::size_t>(i * n_groups_ + g)];
    if (mine == kNullBlock || mine == theirs) continue;
    if (theirs != kNullBlock) {
      mine = theirs;
    } else {
      theirs = mine;
      pool_.hold_in_tree(mine, g);
      pool_.order().enter_hole(mine);
      places_[static_cast<std::size_t>(mine)] = {&node, node.first_block + i};
    }
  }
  return {&node, i + 1};
}

void PrefixTree::raise_before(BlockId id, std::uint32_t uses) {
  do {
    id = block_before(id);
  } while (id != kNullBlock && pool_.order().raise(id, uses));
}

// A node that is in no set yet, but has the memory to be put into one.
PrefixTree::Children::node_type PrefixTree::new_node() const {
  Children one(TokensLess{static_cast<std::size_t>(bs_)});
  one.insert(std::make_unique<Node>(bs_));
  return one.extract(one.begin());
}

void PrefixTree::make_room(Node& node, std::size_t blocks) const {
  reserve_more(node.tokens, blocks * static_cast<std::size_t>(bs_));
  reserve_more(node.ids, blocks * static_cast<std::size_t>(n_groups_));
  reserve_more(node.digests, blocks);
}

void PrefixTree::append(Node& leaf, const Block& block) {
  make_room(leaf, 1);
  const std::int32_t at = n_blocks(leaf);
  leaf.tokens.insert(leaf.tokens.end(), block.tokens.begin(), block.tokens.end());
  leaf.ids.insert(leaf.ids.end(), block.ids.begin(), block.ids.end());
  leaf.digests.push_back(block.digest);
  for (std::size_t g = 0; g < block.ids.size(); ++g) {
    if (block.ids[g] != kNullBlock) pool_.hold_in_tree(block.ids[g], static_cast<int>(g));
  }
  set_places(leaf, at);
  const bool full = block.tokens.size() == static_cast<std::size_t>(bs_);
  const bool sample = full && EvictionOrder::is_sample(leaf.first_block + at);
  const std::uint32_t uses = pool_.order().enter(block.ids, sample ? &block.digest : nullptr);
  if (uses > 1) raise_before(block.ids[0], uses);
}

void PrefixTree::add_child(Node& parent, Children::node_type child, const Block& block) {
  Node& node = *child.value();
  node.parent = &parent;
  node.first_block = parent.first_block + n_blocks(parent);
  append(node, block);
  parent.children.insert(std::move(child));
  ++node_count_;
  warm_last_window(parent);
}

void PrefixTree::replace_partial(Node& leaf, const Block& block) {
  make_room(leaf, 1);
  // The order of siblings looks at first blocks: take the leaf out while its own may change.
  Children& siblings = leaf.parent->children;
  auto handle = siblings.extract(siblings.find(block_tokens(leaf, 0)));
  pop_last_block(leaf);
  append(leaf, block);
  siblings.insert(std::move(handle));
}

void PrefixTree::split(Node& node, std::int32_t blocks) {
  assert(blocks > 0 && blocks < n_blocks(node));
  auto handle = new_node();
  Node* lower = handle.value().get();
  make_room(*lower, static_cast<std::size_t>(n_blocks(node) - blocks));
  lower->parent = &node;
  lower->first_block = node.first_block + blocks;
  move_tail(node.tokens, static_cast<std::size_t>(blocks * bs_), lower->tokens);
  move_tail(node.ids, static_cast<std::size_t>(blocks * n_groups_), lower->ids);
  move_tail(node.digests, static_cast<std::size_t>(blocks), lower->digests);
  std::swap(lower->children, node.children);
  for (const auto& child : lower->children) child->parent = lower;
  set_places(*lower, 0);
  node.children.insert(std::move(handle));
  ++node_count_;
}

void PrefixTree::warm_last_window(Node& node) {
  const std::int32_t end = n_blocks(node);
  for (int g = 1; g < n_groups_; ++g) {
    const std::int32_t begin = std::max(0, (end * bs_ - config_.groups[static_cast<std::size_t>(g)].window) / bs_);
    for (std::int32_t b = begin; b < end; ++b) {
      const BlockId id = row(node, b)[g];
      if (id != kNullBlock && pool_.users(id) == 0) pool_.order().touch(id);
    }
  }
}

// --- small things ---------------------------------------------------------------------------------------------------

std::span<const Token> PrefixTree::block_tokens(const Node& node, std::int32_t i) const {
  const auto begin = static_cast<std::size_t>(i * bs_);
  return std::span(node.tokens).subspan(begin, std::min(static_cast<std::size_t>(bs_), node.tokens.size() - begin));
}

BlockId PrefixTree::block_before(BlockId id) const {
  const Place at = place(id);
  if (at.block == 0) return kNullBlock;
  const Node& node = at.block > at.node->first_block ? *at.node : *at.node->parent;
  return row(node, at.block - 1 - node.first_block)[0];
}

void PrefixTree::set_places(Node& node, std::int32_t from_block) {
  for (std::int32_t b = from_block; b < n_blocks(node); ++b) {
    for (int g = 0; g < n_groups_; ++g) {
      if (const BlockId id = row(node, b)[g]; id != kNullBlock) {
        places_[static_cast<std::size_t>(id)] = {&node, node.first_block + b};
      }
    }
  }
}

}  // namespace coppice::kv
