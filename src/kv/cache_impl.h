// The inside of Cache, shared by cache.cpp and detach.cpp (what it does) and cache_check.cpp (how it is checked and shown).
#pragma once

#include <algorithm>
#include <unordered_map>

#include "kv/block_pool.h"
#include "kv/cache.h"
#include "kv/prefix_tree.h"
#include "kv/sequence.h"

namespace coppice::kv {

struct Cache::Impl {
  explicit Impl(CacheConfig c);

  int n_groups() const { return static_cast<int>(config.groups.size()); }
  std::int32_t blocks_for(std::int32_t tokens) const { return (tokens + config.block_size - 1) / config.block_size; }
  Sequence& at(SeqId id) { return sequences.at(id); }
  const Sequence& at(SeqId id) const { return sequences.at(id); }

  /// The most blocks of a group that a sequence holds at once while its prompt is prefilled up to `blocks` blocks.
  std::int32_t most_held(const GroupSpec& group, std::int32_t blocks) const;
  /// The first block that a query at position `len` still sees.
  std::int32_t window_begin(const GroupSpec& group, std::int32_t len) const {
    return group.kind == GroupKind::kFull ? 0 : std::max(0, len - group.window) / config.block_size;
  }
  /// What a prompt takes of the pool that nobody holds yet.
  struct Claim {
    std::int64_t fresh = 0;   ///< blocks to be allocated until the prompt is prefilled
    std::int64_t cached = 0;  ///< of those that matched
  };
  Claim claim(const PrefixTree::Match& match, std::int32_t prompt_blocks) const;
  /// Growth and fork blocks of one sample.
  std::int32_t spare() const { return 2 * n_groups(); }
  /// What a sequence with `reserved` blocks of its own may allocate.
  std::int64_t available(std::int32_t own_reserved) const {
    return pool.free() + pool.cached() - (reserved - own_reserved);
  }

  /// Takes references on the matched prefix.
  void take_matched(Sequence& seq, std::span<const Token> prompt, const PrefixTree::Match& match);
  /// A request has started on these blocks.
  void count_uses(const Sequence& seq);
  SeqId start(Sequence&& seq, std::int64_t needed);
  BlockRef allocate(Sequence& seq);
  void fork_tail(Sequence& seq, std::vector<CopyOp>& copies);
  void publish_full_blocks(Sequence& seq);
  void publish_partial_tail(Sequence& seq);
  void drop_passed_windows(Sequence& seq);
  void unreserve(Sequence& seq);
  void end(SeqId id, bool keep_tail);

  CacheConfig config;
  BlockPool pool;  // before its holders: they release into it when they go
  PrefixTree tree;
  std::unordered_map<SeqId, Sequence> sequences;
  std::unordered_map<DetachedId, DetachedSet> detached;
  std::uint64_t last_id = 0;
  std::int64_t reserved = 0;  // sum over sequences
  std::int64_t cow_forks = 0;
  std::int64_t evictions = 0;
};

}  // namespace coppice::kv
