#include "kv/cache.h"

#include <algorithm>
#include <cassert>
#include <stdexcept>

#include "kv/cache_impl.h"
#include "kv/faults.h"
#include "kv/reserve_more.h"

namespace coppice::kv {

namespace {

CacheConfig checked(CacheConfig config) {
  const auto require = [](bool ok, const char* what) {
    if (!ok) throw std::invalid_argument(what);
  };
  require(config.block_size > 0, "kv cache: block_size must be positive");
  require(config.num_blocks > 1, "kv cache: the pool needs at least one block besides the null block");
  require(config.max_extend > 0, "kv cache: max_extend must be positive");
  require(!config.groups.empty() && config.groups[0].kind == GroupKind::kFull,
          "kv cache: layer group 0 must be full attention");
  for (const GroupSpec& group : config.groups) {
    require(group.kind != GroupKind::kSliding || group.window > 0, "kv cache: a sliding group needs a window");
  }
  return config;
}

}  // namespace

Cache::Impl::Impl(CacheConfig c)
    : config(checked(std::move(c))),
      pool(config.num_blocks, n_groups()),
      tree(pool, {config.block_size, config.groups, config.model, config.layout, config.hash}) {}

Cache::Cache(CacheConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

const CacheConfig& Cache::config() const {
  return impl_->config;
}

// --- admission ------------------------------------------------------------------------------------------------------

std::int32_t Cache::Impl::most_held(const GroupSpec& group, std::int32_t blocks) const {
  if (group.kind == GroupKind::kFull) return blocks;
  // One step writes max_extend tokens while the window before them is still read; both ends may lie inside a block.
  return std::min(blocks, blocks_for(group.window + config.max_extend) + 1);
}

Cache::Impl::Claim Cache::Impl::claim(const PrefixTree::Match& match, std::int32_t prompt_blocks) const {
  const auto matched = static_cast<std::int64_t>(match.rows.size());
  // Sequences hold whole paths of the full group: blocks in use come first.
  const auto in_use =
      std::ranges::partition_point(match.rows, [&](const BlockId* row) { return pool.users(row[0]) > 0; });
  Claim sum{.fresh = prompt_blocks - matched, .cached = match.rows.end() - in_use};
  for (std::size_t g = 1; g < config.groups.size(); ++g) {
    std::int64_t held = 0;
    for (auto b = window_begin(config.groups[g], match.length); b < matched; ++b) {
      const BlockId id = match.rows[static_cast<std::size_t>(b)][g];
      held += id != kNullBlock;
      sum.cached += id != kNullBlock && pool.users(id) == 0;
    }
    const std::int64_t room = most_held(config.groups[g], prompt_blocks) - held;
    sum.fresh += std::max<std::int64_t>(0, std::min(prompt_blocks - matched, room));
  }
  return sum;
}

std::int64_t Cache::blocks_needed(std::int32_t prompt_len, int n_samples) const {
  std::int64_t sum = std::int64_t{n_samples} * impl_->spare();
  for (const GroupSpec& group : impl_->config.groups) sum += impl_->most_held(group, impl_->blocks_for(prompt_len));
  return sum;
}

std::int32_t Cache::match(std::span<const Token> tokens, const Namespace& ns) const {
  return impl_->config.share ? impl_->tree.match(tokens, ns).length : 0;
}

MatchEnd Cache::explain(std::span<const Token> tokens, const Namespace& ns) const {
  return impl_->tree.explain(tokens, ns);
}

Overlap Cache::overlap(std::span<const Token> tokens, const Namespace& ns) const {
  if (!impl_->config.share) return {};
  const PrefixTree::Match match = impl_->tree.match(tokens, ns);
  // Sequences hold whole paths of the full group: blocks in use come first.
  const auto held = [&](const BlockId* row) { return impl_->pool.users(row[0]) > 0; };
  const auto blocks = std::ranges::partition_point(match.rows, held) - match.rows.begin();
  return {match.length, std::min(match.length, static_cast<std::int32_t>(blocks) * impl_->config.block_size)};
}

void Cache::Impl::take_matched(Sequence& seq, std::span<const Token> prompt, const PrefixTree::Match& match) {
  seq.tokens.assign(prompt.begin(), prompt.begin() + match.length);
  seq.cached_len = seq.computed_len = match.length;
  seq.published = match.length / config.block_size;
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    BlockTable& table = seq.tables.emplace_back(pool);
    const auto begin = static_cast<std::size_t>(window_begin(config.groups[g], match.length));
    for (std::size_t b = 0; b < match.rows.size(); ++b) {
      const BlockId id = match.rows[b][g];
      if (b < begin || id == kNullBlock) {
        table.push_null();
      } else {
        table.push(pool.acquire(id));
      }
    }
  }
  if (fault(Fault::kDropReference) && !match.rows.empty()) pool.release(match.rows[0][0]);
}

void Cache::Impl::count_uses(const Sequence& seq) {
  for (std::size_t g = 0; g < seq.tables.size(); ++g) {
    for (std::int32_t b = 0; const BlockId id : seq.tables[g].ids()) {
      const bool sample = EvictionOrder::is_sample(b++);
      if (id != kNullBlock) pool.order().use(id, /*came_back=*/sample && g == 0 && pool.users(id) == 1);
    }
  }
}

SeqId Cache::Impl::start(Sequence&& seq, std::int64_t needed) {
  seq.reserved = static_cast<std::int32_t>(needed);
  const SeqId id{++last_id};
  sequences.reserve(sequences.size() + 1);
  sequences.emplace(id, std::move(seq));
  reserved += needed;
  return id;
}

// A request without room asks again in every step: until it fits it takes no reference, or it would reheat its prefix
// each time, and the order would learn from that.
std::expected<SeqId, NoRoom> Cache::admit(const AdmitRequest& request) {
  Impl& impl = *impl_;
  assert(!request.prompt.empty() && request.n_samples > 0);
  PrefixTree::Match match;
  if (impl.config.share) match = impl.tree.match(request.prompt.first(request.prompt.size() - 1), request.ns);
  const auto prompt_len = static_cast<std::int32_t>(request.prompt.size());
  const std::int32_t prompt_blocks = impl.blocks_for(prompt_len);
  const Impl::Claim claim = impl.claim(match, prompt_blocks);
  const std::int64_t needed = claim.fresh + request.n_samples * impl.spare();
  const std::int64_t room = impl.available(0) - claim.cached - request.keep_free;
  if (needed > room && !fault(Fault::kReserveNothing)) {
    return std::unexpected(NoRoom{needed, room, blocks_needed(prompt_len, request.n_samples) > impl.pool.total()});
  }

  Sequence seq;
  seq.ns = request.ns;
  seq.prompt_blocks = prompt_blocks;
  impl.take_matched(seq, request.prompt, match);
  const SeqId id = impl.start(std::move(seq), needed);
  impl.count_uses(impl.at(id));
  return id;
}

// --- growing --------------------------------------------------------------------------------------------------------

BlockRef Cache::Impl::allocate(Sequence& seq) {
  if (fault(Fault::kEvictInUse) && pool.free() == 0 && sequences.size() > 1) {
    for (auto& [id, other] : sequences) {
      if (&other != &seq && other.tables[0].size() > 0) return pool.acquire(other.tables[0][0]);
    }
  }
  while (pool.free() == 0) {
    const BlockId victim = pool.order().next();
    if (victim == kNullBlock) throw std::logic_error("kv cache: a reserved block could not be had");
    evictions += tree.evict(victim);
  }
  BlockRef fresh = pool.allocate();
  if (seq.reserved > 0) {
    --seq.reserved;
    --reserved;
  }
  return fresh;
}

std::expected<void, OutOfBlocks> Cache::extend(SeqId id, std::span<const Token> tokens, std::vector<CopyOp>& copies) {
  Impl& impl = *impl_;
  Sequence& seq = impl.at(id);
  const int bs = impl.config.block_size;
  assert(seq.len() == seq.computed_len && tokens.size() <= static_cast<std::size_t>(impl.config.max_extend));
  if (tokens.empty()) return {};

  const auto blocks = static_cast<std::size_t>(impl.blocks_for(seq.len() + static_cast<std::int32_t>(tokens.size())));
  std::int64_t needed = 0;
  for (const BlockTable& table : seq.tables) {
    needed += static_cast<std::int64_t>(blocks - table.size());
    if (seq.len() % bs != 0) needed += impl.pool.ref_count(table[table.size() - 1]) > 1;
  }
  if (needed > impl.available(seq.reserved)) return std::unexpected(OutOfBlocks{});
  for (BlockTable& table : seq.tables) table.reserve(blocks);
  reserve_more(seq.tokens, tokens.size());
  reserve_more(copies, seq.tables.size());

  if (seq.len() % bs != 0 && !fault(Fault::kSkipFork)) impl.fork_tail(seq, copies);
  for (BlockTable& table : seq.tables) {
    while (table.size() < blocks) table.push(impl.allocate(seq));
  }
  seq.tokens.insert(seq.tokens.end(), tokens.begin(), tokens.end());
  return {};
}

void Cache::Impl::fork_tail(Sequence& seq, std::vector<CopyOp>& copies) {
  const int filled = seq.len() % config.block_size;
  for (BlockTable& table : seq.tables) {
    const std::size_t tail = table.size() - 1;
    const BlockId old = table[tail];
    if (pool.ref_count(old) == 1) continue;  // the last owner writes in place
    BlockRef fresh = allocate(seq);
    copies.push_back({old, fresh.id(), fault(Fault::kCopyOneShort) ? filled - 1 : filled});
    // The old block is let go of here: copies run in order before the step's writes, so it may be reused at once.
    const BlockRef shared = table.replace(tail, std::move(fresh));
    ++cow_forks;
  }
  seq.published = std::min(seq.published, static_cast<std::int32_t>(seq.len() / config.block_size));
}

// --- after the step -------------------------------------------------------------------------------------------------

void Cache::publish(SeqId id) {
  Sequence& seq = impl_->at(id);
  seq.computed_len = seq.len();
  if (impl_->config.share) impl_->publish_full_blocks(seq);
  impl_->drop_passed_windows(seq);
}

void Cache::Impl::publish_full_blocks(Sequence& seq) {
  const int bs = config.block_size;
  const bool unfilled = fault(Fault::kPublishUnfilled) && seq.computed_len % bs == bs - 1;
  const std::int32_t full = seq.computed_len / bs + (unfilled ? 1 : 0);
  if (seq.published >= full) return;
  if (unfilled) seq.tokens.push_back(0);

  std::vector<BlockId> ids(config.groups.size());
  PrefixTree::Cursor at =
      seq.published == 0 ? tree.root(seq.ns) : tree.after(seq.tables[0][static_cast<std::size_t>(seq.published - 1)]);
  for (; seq.published < full; ++seq.published) {
    const auto b = static_cast<std::size_t>(seq.published);
    for (std::size_t g = 0; g < ids.size(); ++g) ids[g] = seq.tables[g][b];
    at = tree.publish(at, std::span(seq.tokens).subspan(b * static_cast<std::size_t>(bs), static_cast<std::size_t>(bs)),
                      ids);
    for (std::size_t g = 0; g < ids.size(); ++g) {
      if (ids[g] == seq.tables[g][b]) continue;
      // The tree has this block already: use its copy and let go of ours.
      BlockRef ours = seq.tables[g].replace(b, pool.acquire(ids[g]));
      if (fault(Fault::kStaleTableAfterMerge)) ours = seq.tables[g].replace(b, std::move(ours));
    }
  }
  if (unfilled) seq.tokens.pop_back();
}

void Cache::Impl::publish_partial_tail(Sequence& seq) {
  const auto filled = static_cast<std::size_t>(seq.computed_len % config.block_size);
  if (!config.share || filled == 0) return;
  const auto b = static_cast<std::size_t>(seq.computed_len / config.block_size);
  std::vector<BlockId> ids;
  for (const BlockTable& table : seq.tables) ids.push_back(table[b]);
  const PrefixTree::Cursor at = b == 0 ? tree.root(seq.ns) : tree.after(seq.tables[0][b - 1]);
  tree.publish(at, std::span(seq.tokens).subspan(b * static_cast<std::size_t>(config.block_size), filled), ids);
}

void Cache::Impl::drop_passed_windows(Sequence& seq) {
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const GroupSpec& group = config.groups[g];
    if (group.kind == GroupKind::kFull) continue;
    BlockTable& table = seq.tables[g];
    const std::int32_t passed = window_begin(group, seq.computed_len);
    // Backwards up to the first entry that was dropped before: O(blocks dropped).
    for (std::int32_t b = passed - 1; b >= 0 && table[static_cast<std::size_t>(b)] != kNullBlock; --b) {
      const BlockId id = table[static_cast<std::size_t>(b)];
      const Heat heat = pool.in_tree(id) && tree.before_branch(id, group.window) ? Heat::kHot : Heat::kCold;
      // While the prompt is being prefilled, what the window leaves behind pays for what it will need.
      const bool freed = table.drop(static_cast<std::size_t>(b), heat);
      if (freed && static_cast<std::int32_t>(table.size()) < seq.prompt_blocks) {
        ++seq.reserved;
        ++reserved;
      }
    }
  }
}

SeqId Cache::fork(SeqId id) {
  Impl& impl = *impl_;
  Sequence& parent = impl.at(id);
  assert(parent.len() == parent.computed_len);
  Sequence child;
  child.ns = parent.ns;
  child.tokens = parent.tokens;
  for (const BlockTable& table : parent.tables) child.tables.push_back(table.share());
  child.cached_len = parent.cached_len;
  child.computed_len = parent.computed_len;
  child.published = parent.published;
  child.prompt_blocks = parent.prompt_blocks;
  const std::int32_t taken_over = child.reserved = std::min(parent.reserved, impl.spare());
  const SeqId child_id{++impl.last_id};
  impl.sequences.reserve(impl.sequences.size() + 1);
  impl.sequences.emplace(child_id, std::move(child));
  parent.reserved -= taken_over;
  return child_id;
}

bool Cache::truncate(SeqId id, std::int32_t new_len) {
  Impl& impl = *impl_;
  Sequence& seq = impl.at(id);
  assert(new_len >= 0 && new_len <= seq.len() && seq.len() == seq.computed_len);
  for (std::size_t g = 0; g < seq.tables.size(); ++g) {
    const std::int32_t begin = impl.window_begin(impl.config.groups[g], new_len);
    if (begin < impl.blocks_for(new_len) && seq.tables[g][static_cast<std::size_t>(begin)] == kNullBlock) return false;
  }
  seq.tokens.resize(static_cast<std::size_t>(new_len));
  seq.computed_len = new_len;
  seq.cached_len = std::min(seq.cached_len, new_len);
  seq.published = std::min(seq.published, static_cast<std::int32_t>(new_len / impl.config.block_size));
  for (BlockTable& table : seq.tables) table.resize_down(static_cast<std::size_t>(impl.blocks_for(new_len)));
  return true;
}

// --- ending ---------------------------------------------------------------------------------------------------------

void Cache::Impl::unreserve(Sequence& seq) {
  reserved -= seq.reserved;
  seq.reserved = 0;
}

void Cache::Impl::end(SeqId id, bool keep_tail) {
  Sequence& seq = at(id);
  try {
    if (keep_tail) publish_partial_tail(seq);
  } catch (const std::exception&) {
    // Memory ran out: the tail is not kept. A sequence must be able to end in any case.
  }
  if (fault(Fault::kLeakReference) && seq.tables[0].size() > 0) pool.acquire(seq.tables[0][0]).take();
  unreserve(seq);
  sequences.erase(id);
}

// With tokens appended but not computed, the tail block may be the target of a copy that will never run.
void Cache::finish(SeqId id) {
  impl_->end(id, impl_->at(id).len() == impl_->at(id).computed_len);
}

void Cache::abandon(SeqId id) {
  impl_->end(id, false);
}

// --- looking --------------------------------------------------------------------------------------------------------

Lengths Cache::lengths(SeqId id) const {
  const Sequence& seq = impl_->at(id);
  assert(seq.cached_len <= seq.computed_len && seq.computed_len <= seq.len());
  return {seq.cached_len, seq.computed_len, seq.len()};
}

std::span<const Token> Cache::tokens(SeqId id) const {
  return impl_->at(id).tokens;
}

TableView Cache::table(SeqId id, int group) const {
  return {impl_->at(id).tables[static_cast<std::size_t>(group)].ids(), impl_->config.block_size};
}

std::int32_t Cache::reserved(SeqId id) const {
  return impl_->at(id).reserved;
}

CacheStats Cache::stats() const {
  const Impl& impl = *impl_;
  const BlockPool& pool = impl.pool;
  CacheStats stats;
  stats.block_size = impl.config.block_size;
  stats.total = pool.total();
  stats.free = pool.free();
  stats.in_use = pool.in_use();
  stats.cached = pool.cached();
  stats.shared = pool.shared();
  stats.max_refs = pool.max_users();
  stats.reserved = impl.reserved;
  const auto bytes = [&](std::int64_t blocks) {
    return static_cast<std::size_t>(blocks) * impl.config.bytes_per_block;
  };
  stats.bytes_budget = bytes(pool.total());
  stats.bytes_in_use = bytes(pool.in_use());
  stats.bytes_peak = bytes(pool.peak_in_use());
  stats.cow_forks = impl.cow_forks;
  stats.evictions = impl.evictions;
  stats.tree_nodes = impl.tree.node_count();
  stats.sequences = static_cast<std::int64_t>(impl.sequences.size());
  return stats;
}

}  // namespace coppice::kv
