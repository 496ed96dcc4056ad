#include "kv/cache.h"

#include <algorithm>
#include <utility>

#include "check/assert.h"
#include "kv/arrivals.h"
#include "kv/block_pool.h"
#include "kv/budget.h"
#include "kv/cache_check.h"
#include "kv/cache_dump.h"
#include "kv/cache_stats.h"
#include "kv/faults.h"
#include "kv/prefix_tree.h"
#include "kv/publisher.h"
#include "kv/reserve_more.h"
#include "kv/state_keeper.h"
#include "kv/state_table.h"

namespace coppice::kv {

struct Cache::Impl {
  explicit Impl(CacheConfig c)
      : config(checked(std::move(c))),
        pool(config.num_blocks, config.n_groups() + (config.state_pages > 0 ? 1 : 0)),
        states(config, pool),
        tree(pool, states, config),
        budget(config, pool, tree),
        keeper(config, states, budget, sequences),
        publisher(config, pool, tree, budget, keeper),
        arrivals(config, budget, keeper, publisher),
        storables(config, pool, states, tree),
        pins(config, pool, states, tree, budget) {}

  CacheView view() const { return {config, pool, states, tree, sequences, pins, budget.reserved()}; }

  void take_matched(CacheSequence& seq, TextView prompt, const PrefixMatch& match);
  void count_uses(const CacheSequence& seq);
  SeqId start(CacheSequence&& seq, std::int64_t reserved);
  void fork_tail(CacheSequence& seq, std::vector<BlockOp>& ops);
  void end(SeqId id, bool keep_tail);

  const CacheConfig config;
  BlockPool pool;  // before its holders: they release into it when they go
  StateTable states;
  PrefixTree tree;
  Budget budget;
  StateKeeper keeper;
  Publisher publisher;
  Arrivals arrivals;
  Storables storables;
  PinTable pins;
  Sequences sequences;
  std::uint64_t last_id = 0;
  std::int64_t cow_forks = 0;
  std::int64_t reused = 0;
};

Cache::Cache(CacheConfig config) : impl_(std::make_unique<Impl>(std::move(config))) {}
Cache::~Cache() = default;
Cache::Cache(Cache&&) noexcept = default;
Cache& Cache::operator=(Cache&&) noexcept = default;

// --- admission ------------------------------------------------------------------------------------------------------

std::int32_t Cache::match(TextView tokens, const Namespace& ns) const {
  return overlap(tokens, ns).cached;
}

Overlap Cache::overlap(TextView tokens, const Namespace& ns) const {
  if (!impl_->config.share) return {};
  const PrefixMatch match = impl_->tree.match(tokens, ns);
  // A pin alone is nobody who runs: its blocks must not let a request pass others in the queue.
  const auto held = [&](const BlockId* row) { return impl_->pool.users(row[0]) > impl_->pins.count(row[0]); };
  const auto end = std::ranges::partition_point(match.rows, held);
  const auto in_use = static_cast<std::int32_t>(end - match.rows.begin()) * impl_->config.block_size;
  return {match.length, std::min(match.length, in_use)};
}

std::vector<BlockId> Cache::whole_blocks(TextView tokens, const Namespace& ns) const {
  return impl_->tree.whole_blocks(tokens, ns);
}

MatchEnd Cache::explain(TextView tokens, const Namespace& ns) const {
  return kv::explain(impl_->tree, impl_->pool.order(), impl_->config, tokens, ns);
}

TreePicture Cache::picture(const Namespace& ns, const PictureLimits& limits) const {
  return kv::picture(impl_->tree, impl_->pool, ns, limits);
}

std::uint64_t Cache::stands_on(SeqId id) const {
  const CacheSequence& seq = impl_->sequences.at(id);
  if (!impl_->config.share || seq.published == 0) return 0;
  const PrefixTree::Place at = impl_->tree.place(seq.tables[0][seq.published - 1]);
  return at.node == nullptr ? 0 : at.node->serial;
}

void Cache::set_time(double seconds) {
  impl_->tree.set_time(seconds);
}

// A request without room asks again in every step. Until it fits it takes no reference: each would make its prefix look
// freshly used, and the eviction order would learn from that.
std::expected<SeqId, NoRoom> Cache::admit(const AdmitRequest& request) {
  Impl& impl = *impl_;
  COPPICE_ASSERT(!request.prompt.empty() && request.n_samples > 0);
  COPPICE_ASSERT(request.prompt.may_be_cut(static_cast<std::int32_t>(request.prompt.size())));
  PrefixMatch match;
  const std::size_t usable = std::min(request.prompt.size() - 1, request.most_cached);
  if (impl.config.share) match = impl.tree.match(request.prompt.first(usable), request.ns);
  const auto prompt_len = static_cast<std::int32_t>(request.prompt.size());
  const std::int32_t prompt_blocks = impl.config.blocks_for(prompt_len);
  const Budget::Claim claim = impl.budget.claim(match, prompt_blocks);
  std::int64_t needed = claim.fresh + impl.config.spare_blocks_of(request.n_samples);
  const std::int64_t room = impl.budget.available(0) - claim.cached - request.keep_free;
  // Without room for a state of its own it goes on in the cached one, which no other request finds any more.
  const bool takes_state = claim.lone_state && needed > room;
  if (takes_state) needed -= impl.config.state_pages;
  if (needed > room && !fault(Fault::kReserveNothing)) {
    const bool never = impl.config.blocks_needed(prompt_len, request.n_samples) > impl.pool.total();
    return std::unexpected(NoRoom{needed, room, never});
  }

  CacheSequence seq;
  seq.ns = request.ns;
  seq.prompt_blocks = prompt_blocks;
  seq.growth_reserve = static_cast<std::int32_t>(needed - claim.fresh);
  impl.take_matched(seq, request.prompt, match);
  impl.keeper.keep_at(seq, prompt_len - 1);
  if (match.known > match.length) impl.keeper.keep_at(seq, match.known);  // texts part there
  const SeqId id = impl.start(std::move(seq), needed);
  impl.count_uses(impl.sequences.at(id));
  if (takes_state) impl.states.leave(match.state);
  impl.tree.count_hit(match);
  return id;
}

// Takes references on the matched prefix.
void Cache::Impl::take_matched(CacheSequence& seq, TextView prompt, const PrefixMatch& match) {
  seq.prompt_media = prompt.spans();
  seq.tokens = Text(prompt.first(static_cast<std::size_t>(match.length)));
  seq.cached_len = seq.len = match.length;
  seq.published = match.length / config.block_size;
  for (int g = 0; g < config.n_groups(); ++g) {
    BlockTable& table = seq.tables.emplace_back(pool);
    const auto begin = static_cast<std::size_t>(config.first_needed_block(g, match.length));
    for (std::size_t b = 0; b < match.rows.size(); ++b) {
      const BlockId id = match.rows[b][g];
      if (b < begin || id == kNullBlock) {
        table.push_null();
      } else {
        table.push(pool.acquire(id));
        ++reused;
      }
    }
  }
  if (match.state != kNoUnit) seq.states.now = states.acquire(match.state);
  if (fault(Fault::kDropReference) && !match.rows.empty()) pool.release(match.rows[0][0]);
}

// A request has started on these blocks.
void Cache::Impl::count_uses(const CacheSequence& seq) {
  for (std::size_t g = 0; g < seq.tables.size(); ++g) {
    for (std::int32_t b = 0; const BlockId id : seq.tables[g].ids()) {
      const bool sample = EvictionOrder::is_sample(b++);
      if (id != kNullBlock) pool.order().use(id, /*came_back=*/sample && g == 0 && pool.users(id) == 1);
    }
  }
  if (seq.states.now) states.count_use(seq.states.now.unit());
}

SeqId Cache::Impl::start(CacheSequence&& seq, std::int64_t reserved) {
  const SeqId id{++last_id};
  budget.reserve(sequences.emplace(id, std::move(seq)).first->second, reserved);
  return id;
}

// --- growing --------------------------------------------------------------------------------------------------------

std::expected<void, OutOfBlocks> Cache::extend(SeqId id, std::int32_t n, std::vector<BlockOp>& ops, bool draft) {
  Impl& impl = *impl_;
  CacheSequence& seq = impl.sequences.at(id);
  const CacheConfig& config = impl.config;
  COPPICE_ASSERT(n >= 0 && seq.len + n - seq.computed_len() <= config.max_extend && !seq.awaits);
  COPPICE_ASSERT(seq.len == seq.computed_len() || config.state_pages == 0);
  COPPICE_ASSERT(seq.may_be_cut(seq.len + n));
  if (n == 0) return {};

  const bool into_tail = seq.len % config.block_size != 0;
  const auto blocks = static_cast<std::size_t>(config.blocks_for(seq.len + n));
  std::int64_t needed = impl.keeper.to_take(seq, draft);
  for (const BlockTable& table : seq.tables) {
    needed += static_cast<std::int64_t>(blocks - table.size());
    if (into_tail) needed += impl.pool.ref_count(table.back()) > 1;
  }
  const std::int64_t room = impl.budget.available(seq.reserved);
  if (needed > room && !draft && needed - impl.keeper.spared_in_place(seq) <= room)
    needed -= impl.keeper.go_on_in_place(seq);
  if (needed > room) return std::unexpected(OutOfBlocks{});
  for (BlockTable& table : seq.tables) table.reserve(blocks);
  seq.tokens.make_room(static_cast<std::size_t>(seq.len + n - seq.computed_len()), 0);  // for publish()
  reserve_more(ops, seq.tables.size());

  impl.keeper.begin_step(seq, draft);
  if (into_tail && !fault(Fault::kSkipFork)) impl.fork_tail(seq, ops);
  for (BlockTable& table : seq.tables) {
    while (table.size() < blocks) table.push(impl.budget.allocate_slots(seq));
  }
  seq.len += n;
  return {};
}

void Cache::Impl::fork_tail(CacheSequence& seq, std::vector<BlockOp>& ops) {
  const int filled = seq.len % config.block_size;
  for (int g = 0; g < config.n_groups(); ++g) {
    BlockTable& table = seq.tables[g];
    const BlockId old = table.back();
    if (pool.ref_count(old) == 1) continue;  // the last owner writes in place
    BlockRef fresh = budget.allocate(seq);
    if (seq.growth_reserve > 0) --seq.growth_reserve;
    ops.push_back({.src = old,
                   .dst = fresh.id(),
                   .n_slots = fault(Fault::kCopyOneShort) ? filled - 1 : filled,
                   .group = fault(Fault::kCopyOtherGroup) ? 0 : g});
    seq.tail_forked = true;
    // The old block is let go of here: operations run in order before the step's writes, so it may be reused at once.
    const BlockRef shared = table.replace(table.size() - 1, std::move(fresh));
    ++cow_forks;
  }
}

// --- after the step -------------------------------------------------------------------------------------------------

void Cache::publish(SeqId id, TextView tokens) {
  CacheSequence& seq = impl_->sequences.at(id);
  const auto written = static_cast<std::size_t>(seq.len - seq.computed_len());
  COPPICE_ASSERT(tokens.size() <= written);
  COPPICE_ASSERT(impl_->config.state_pages == 0 || tokens.size() == written || tokens.empty());
  seq.tokens.append(tokens);
  COPPICE_ASSERT(seq.may_be_cut(seq.computed_len()));
  seq.tail_forked = false;  // the oldest step has run, and only its slots can be in a fork
  if (tokens.empty()) return;
  impl_->publisher.publish_step(seq);
  const auto behind = impl_->config.blocks_for(seq.len) - impl_->config.blocks_for(seq.computed_len());
  seq.unpromised = std::min(seq.unpromised, behind * impl_->config.n_groups());
}

void Cache::rewind(SeqId id, std::int32_t len) {
  Impl& impl = *impl_;
  CacheSequence& seq = impl.sequences.at(id);
  COPPICE_ASSERT(len >= seq.computed_len() && len <= seq.len && seq.may_be_cut(len));
  if (len == seq.len) return;
  COPPICE_ASSERT(len > seq.computed_len() ? impl.config.state_pages == 0 : !seq.tail_forked);
  const std::int32_t blocks = impl.config.blocks_for(len), before = impl.config.blocks_for(seq.len);
  std::int32_t taken_back = 0;
  for (BlockTable& table : seq.tables) {
    const bool one_long = fault(Fault::kRewindOneLong) && before > blocks;
    const auto gone = table.ids().subspan(static_cast<std::size_t>(blocks));
    taken_back +=
        static_cast<std::int32_t>(gone.size() - static_cast<std::size_t>(std::ranges::count(gone, kNullBlock)));
    table.resize_down(static_cast<std::size_t>(blocks + (one_long ? 1 : 0)));
  }
  if (!fault(Fault::kRewindOneLong)) impl.budget.take_back(seq, taken_back);
  impl.keeper.rewind(seq);
  seq.len = len;
  seq.awaits &= len > seq.computed_len();
}

// --- what comes from outside ----------------------------------------------------------------------------------------

bool Cache::await(SeqId id, std::int32_t len) {
  return impl_->arrivals.await(impl_->sequences.at(id), len);
}

void Cache::arrived(SeqId id, TextView tokens) {
  impl_->arrivals.arrived(impl_->sequences.at(id), tokens);
}

const Storables& Cache::storables() const {
  return impl_->storables;
}

void Cache::set_stored(std::span<const BlockId> pages, bool stored) {
  for (const BlockId page : pages) {
    if (impl_->pool.in_tree(page)) impl_->pool.set_stored(page, stored);
  }
}

void Cache::set_state_stored(BlockId anchor) {
  const UnitId unit = impl_->states.find(anchor, {});
  if (unit != kNoUnit) set_stored(impl_->states.pages(unit), true);
}

bool Cache::stored(BlockId page) const {
  return impl_->pool.stored(page);
}

void Cache::forget_stored() {
  for (BlockId page = 1; page < impl_->config.num_blocks; ++page) impl_->pool.set_stored(page, false);
}

void Cache::observe(TreeObserver* observer) {
  impl_->tree.observe(observer);
}

void Cache::tell_all() const {
  impl_->tree.tell_all();
}

void Cache::on_eviction(OnStorable f) {
  impl_->budget.on_eviction(&impl_->storables, std::move(f));
}

// --- samples --------------------------------------------------------------------------------------------------------

SeqId Cache::fork(SeqId id) {
  Impl& impl = *impl_;
  CacheSequence& parent = impl.sequences.at(id);
  COPPICE_ASSERT(parent.len == parent.computed_len());
  const std::int32_t taken_over = std::min(parent.reserved, impl.config.spare_blocks());
  const SeqId child_id{++impl.last_id};
  // The map may rehash: the parent stays where it is.
  CacheSequence& child = impl.sequences.emplace(child_id, parent.share()).first->second;
  child.reserved = child.growth_reserve = taken_over;
  parent.reserved -= taken_over;
  parent.growth_reserve = std::max(0, parent.growth_reserve - taken_over);
  return child_id;
}

// --- ending ---------------------------------------------------------------------------------------------------------

void Cache::Impl::end(SeqId id, bool keep_tail) {
  CacheSequence& seq = sequences.at(id);
  if (keep_tail) publisher.publish_end(seq);
  if (fault(Fault::kLeakState) && seq.states.now) states.acquire(seq.states.now.unit()).leak();
  if (fault(Fault::kLeakReference) && seq.tables[0].size() > 0) pool.acquire(seq.tables[0][0]).take();
  budget.give_back(seq);
  sequences.erase(id);
}

void Cache::finish(SeqId id) {
  impl_->end(id, /*keep_tail=*/true);
}

void Cache::abandon(SeqId id) {
  impl_->end(id, false);
}

// --- pins -----------------------------------------------------------------------------------------------------------

std::expected<Pinned, NoPin> Cache::pin(const PinRequest& request) {
  return impl_->pins.add(request);
}

void Cache::unpin(PinId pin) {
  impl_->pins.remove(pin);
}

Cleared Cache::clear() {
  return impl_->tree.clear();
}

// --- looking --------------------------------------------------------------------------------------------------------

const CacheConfig& Cache::config() const {
  return impl_->config;
}

std::int64_t Cache::blocks_needed(std::int32_t prompt_len, int n_samples) const {
  return impl_->config.blocks_needed(prompt_len, n_samples);
}

Lengths Cache::lengths(SeqId id) const {
  const CacheSequence& seq = impl_->sequences.at(id);
  return {seq.cached_len, seq.computed_len(), seq.len};
}

TextView Cache::tokens(SeqId id) const {
  return impl_->sequences.at(id).tokens;
}

TableView Cache::table(SeqId id, int group) const {
  return {impl_->sequences.at(id).tables[group].ids(), impl_->config.block_size};
}

TableView Cache::table(PinId id, int group) const {
  return {impl_->pins.pins().at(id).tables[group].ids(), impl_->config.block_size};
}

std::int32_t Cache::reserved(SeqId id) const {
  return impl_->sequences.at(id).reserved;
}

double Cache::held(SeqId id) const {
  constexpr std::size_t kLooks = 64;  // at each table
  const CacheSequence& seq = impl_->sequences.at(id);
  double sum = seq.reserved;
  const auto add = [&](std::span<const BlockId> ids) {
    const std::size_t stride = ids.size() / kLooks + 1;
    for (std::size_t i = 0; i < ids.size(); i += stride) {
      const auto blocks = static_cast<double>(std::min(stride, ids.size() - i));
      if (ids[i] != kNullBlock) sum += blocks / impl_->pool.users(ids[i]);
    }
  };
  for (const BlockTable& table : seq.tables) add(table.ids());
  add(seq.states.now.pages());
  if (seq.states.next) add(seq.states.next.pages());
  return sum;
}

StatePages Cache::state(SeqId id) const {
  const SequenceStates& states = impl_->sequences.at(id).states;
  return {.in = states.now.pages(), .out = states.next ? states.next.pages() : states.now.pages()};
}

std::span<const BlockId> Cache::state(PinId id) const {
  return impl_->pins.pins().at(id).state.pages();
}

std::int32_t Cache::next_state(SeqId id) const {
  return impl_->keeper.next(impl_->sequences.at(id));
}

void Cache::keep_state(SeqId id, std::int32_t position) {
  impl_->keeper.keep_at(impl_->sequences.at(id), position);
}

void Cache::share_tail(SeqId id, std::int32_t position) {
  CacheSequence& seq = impl_->sequences.at(id);
  if (!impl_->config.share || position % impl_->config.block_size == 0 || position <= seq.len) return;
  seq.wanted_tails.push_back(position);
}

std::int32_t Cache::next_stop(SeqId id) const {
  const CacheSequence& seq = impl_->sequences.at(id);
  std::int32_t next = impl_->keeper.next(seq);
  for (const std::int32_t position : seq.wanted_tails) next = std::min(next, position);
  return next;
}

std::int32_t Cache::state_to_take(SeqId id) const {
  return impl_->keeper.to_take(impl_->sequences.at(id));
}

CacheStats Cache::stats() const {
  CacheStats stats = stats_of(impl_->view());
  stats.cow_forks = impl_->cow_forks;
  stats.evictions = impl_->budget.evictions();
  stats.reused = impl_->reused;
  return stats;
}

std::string Cache::check_integrity() const {
  return kv::check_integrity(impl_->view());
}

std::string Cache::dump() const {
  return kv::dump(impl_->view());
}

}  // namespace coppice::kv
