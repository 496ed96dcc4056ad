#include "support/kv_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace coppice::test {

using kv::BlockId;
using kv::SeqId;
using kv::Token;

KvRig::KvRig(kv::CacheConfig config, bool verify_each)
    : config_(checked(std::move(config))),
      cache_(config_),
      store_(config_),
      verify_each_(verify_each),
      holders_(static_cast<std::size_t>(config_.num_blocks)) {}

bool KvRig::begin(const char* operation) {
  if (!failure_.empty()) return false;
  operation_ = operation;
  ++operations_;
  return true;
}

void KvRig::end() {
  if (verify_each_ && failure_.empty()) verify();
}

void KvRig::fail(const std::string& why) {
  if (!failure_.empty()) return;
  failure_ = fmt::format("operation {} ({}): {}\n{}", operations_, operation_, why, cache_.dump());
}

bool KvRig::step_in_hand() const {
  return !copies_.empty() || std::ranges::any_of(live_, [](const auto& s) { return !s.second.writes.empty(); });
}

Tables KvRig::tables(SeqId seq) const {
  Tables result;
  for (int g = 0; g < n_groups(); ++g) {
    const auto blocks = cache_.table(seq, g).blocks;
    result.emplace_back(blocks.begin(), blocks.end());
  }
  return result;
}

std::optional<SeqId> KvRig::admit(std::span<const Token> prompt, const kv::Namespace& ns, int n_samples) {
  if (!begin("admit")) return std::nullopt;
  const kv::CacheStats before = cache_.stats();
  const auto all_but_last = prompt.first(prompt.size() - 1);
  const std::int32_t known = matched(all_but_last, ns);
  check_match(known, all_but_last, ns);

  const auto admitted = cache_.admit({.prompt = to_kv(prompt), .ns = ns, .n_samples = n_samples});
  const kv::CacheStats after = cache_.stats();
  if (after.free != before.free || after.cow_forks != before.cow_forks || after.evictions != before.evictions) {
    fail("admit() must take references and promises, nothing else");
  }
  if (!admitted) {
    count(Transition::kRefused);
    check_refusal(admitted.error(), static_cast<std::int32_t>(prompt.size()), known, n_samples);
    if (after.in_use != before.in_use || after.reserved != before.reserved) fail("a refused admit() took blocks");
    end();
    return std::nullopt;
  }
  Story story{.ns = ns,
              .prompt = {prompt.begin(), prompt.end()},
              .prompt_len = static_cast<std::int32_t>(prompt.size()),
              .forks_left = n_samples - 1};
  story.tokens.assign(prompt.begin(), prompt.begin() + known);
  std::uint64_t h = history_root(ns);
  for (const Token t : story.tokens) story.history.push_back(h = history_next(h, t));
  story.cached = story.computed = story.matched = known;
  story.published = known / config_.block_size * config_.block_size;
  if (cache_.lengths(*admitted).cached_len != known) {
    fail(fmt::format("match() knows {} tokens, admit() took {}", known, cache_.lengths(*admitted).cached_len));
  }
  note_state_hit(*admitted, story, prompt, known);
  live_.emplace(*admitted, std::move(story));
  end();
  return *admitted;
}

void KvRig::plan_writes(SeqId seq, Story& story, std::int32_t first) {
  for (int g = 0; g < n_groups(); ++g) {
    const kv::TableView table = cache_.table(seq, g);
    for (std::int32_t p = first; p < story.len(); ++p) {
      const auto at = static_cast<std::size_t>(p);
      story.writes.push_back(
          {table.slot(p),
           Row{.token = story.tokens[at], .position = p, .group = g, .filled = 1, .history = story.history[at]}});
    }
  }
}

bool KvRig::extend(SeqId seq, std::span<const Token> tokens, bool draft) {
  if (!begin("extend")) return false;
  Story& story = live_.at(seq);
  const kv::CacheStats stats = cache_.stats();
  const Tables before = tables(seq);
  const std::size_t old_copies = copies_.size();
  const bool state_stood = has_states() && story.len() > 0 && matched(story.tokens, story.ns) == story.len();
  const auto n = static_cast<std::int32_t>(tokens.size());

  if (!story.at_rest()) count(Transition::kExtendedAhead);
  const std::int32_t promised = cache_.reserved(seq);
  if (!cache_.extend(seq, n, copies_, draft)) {
    count(Transition::kOutOfBlocks);
    check_out_of_blocks(seq, before, n, draft, stats);
    if (copies_.size() != old_copies) fail("OutOfBlocks, but copies were planned");
    end();
    return false;
  }
  if (window_moved(seq) && copies_.size() != old_copies) count(Transition::kWindowBeforeFork);
  if (story.at_rest()) story.promised = copies_.size() != old_copies ? -1 : promised;
  story.draft = draft;
  const std::int32_t first = story.len();
  std::uint64_t h = first == 0 ? history_root(story.ns) : story.history.back();
  for (const Token t : tokens) {
    story.tokens.push_back(t);
    story.history.push_back(h = history_next(h, t));
  }
  if (cache_.stats().cow_forks != stats.cow_forks + static_cast<std::int64_t>(copies_.size() - old_copies)) {
    fail("cow_forks must count the copies");
  }
  check_extended(seq, before, old_copies, n);
  if (failure_.empty()) plan_writes(seq, story, first);
  if (state_stood) note_state_taken(seq, std::span(story.tokens).first(static_cast<std::size_t>(first)));
  plan_state(seq, story, first);
  if (cache_.stats().evictions != stats.evictions) note_lost_states();
  end();
  return true;
}

// A partial tail that this history is about to extend in the tree.
void KvRig::note_partials(const Story& story, std::int32_t until) {
  const auto tokens = std::span(story.tokens).first(static_cast<std::size_t>(until));
  const std::int32_t known = matched(tokens, story.ns);
  if (known == until || known <= story.published || known % config_.block_size == 0) return;
  if (partials_.erase(story.history[static_cast<std::size_t>(known) - 1]) > 0) count(Transition::kPartialReplaced);
}

void KvRig::publish(SeqId seq, std::int32_t n) {
  if (!begin("publish")) return;
  Story& story = live_.at(seq);
  const Tables before = tables(seq);
  const std::int32_t old_published = story.published;
  const std::int32_t computed = story.computed + n;
  const std::int32_t full = computed / config_.block_size * config_.block_size;
  if (full > old_published) note_partials(story, full);
  const auto tokens = std::span(story.tokens).first(static_cast<std::size_t>(computed));
  const kv::CacheStats stats = cache_.stats();
  cache_.publish(seq, to_kv(tokens.last(static_cast<std::size_t>(n))));
  story.computed = computed;
  story.tail_forked = false;
  if (n == 0) return end();
  story.promised = -1;
  story.published = full;
  if (config_.share) known_.add(story.ns, tokens.first(static_cast<std::size_t>(full)));
  check_published(seq, before, old_published);
  note_shared_tail(story, stats);
  note_left_to_others(seq, before);
  note_kept_state(seq, story);
  end();
}

// Whether it was shared follows from where the step ended; that there was room for the fork is only checked where
// nothing else frees blocks.
void KvRig::note_shared_tail(Story& story, const kv::CacheStats& before) {
  const bool wanted = std::ranges::count(story.wanted_tails, story.computed) > 0 && story.at_rest();
  std::erase_if(story.wanted_tails, [&](std::int32_t at) { return at <= story.computed; });
  if (!wanted || !config_.share) return;
  const kv::MatchEnd end = cache_.explain(to_kv(story.tokens), story.ns);
  const bool there = end.length + end.stateless == story.computed;
  if (!there && n_groups() == 1 && before.free + before.cached - before.reserved >= 1)
    return fail("a tail that others wait for is not in the tree");
  if (!there && !evicted()) return;
  ++story.tails_shared;
  if (there) count(Transition::kTailShared);
  publish_all(story);
}

void KvRig::share_tail(SeqId seq, std::int32_t position) {
  if (!begin("share_tail")) return;
  cache_.share_tail(seq, position);
  Story& story = live_.at(seq);
  if (position % config_.block_size != 0 && position > story.len()) story.wanted_tails.push_back(position);
  end();
}

std::vector<std::int32_t> KvRig::rewinds(SeqId seq) const {
  const Story& story = live_.at(seq);
  std::vector<std::int32_t> lengths;
  if (!story.at_rest() && !story.tail_forked && (story.draft || !has_states())) lengths.push_back(story.computed);
  for (std::int32_t len = story.computed + 1; len < story.len() && !has_states(); ++len) {
    if (cut_before(story.prompt, len) == len) lengths.push_back(len);
  }
  return lengths;
}

// What the slots behind `len` held is forgotten: of steps in flight they hold garbage.
void KvRig::rewind(SeqId seq, std::int32_t len) {
  if (!begin("rewind")) return;
  Story& story = live_.at(seq);
  const Tables before = tables(seq);
  const kv::CacheStats stats = cache_.stats();
  const auto [in, out] = cache_.state(seq);
  const bool state = has_states() && (in.empty() || in.front() != out.front());
  const std::vector<BlockId> kept(in.begin(), in.end());
  cache_.rewind(seq, len);
  const Tables after = tables(seq);
  std::int64_t given_back = state ? config_.state_pages : 0;
  for (std::size_t g = 0; g < after.size(); ++g) {
    if (!std::ranges::equal(after[g], std::span(before[g]).first(after[g].size()))) fail("rewind() moved a block");
    given_back += std::ssize(before[g]) - std::ssize(after[g]);
  }
  if (cache_.stats().free != stats.free + given_back)
    fail(fmt::format("rewind() gave back {} blocks of {}", cache_.stats().free - stats.free, given_back));
  if (cache_.stats().cached != stats.cached || cache_.stats().cow_forks != stats.cow_forks)
    fail("rewind() must give back slots, nothing else");
  if (has_states() && !std::ranges::equal(cache_.state(seq).in, kept))
    fail("rewind() must leave the state before the step");
  if (len == story.computed && story.promised >= 0 && cache_.reserved(seq) != story.promised)
    fail(fmt::format("{} blocks were promised, and {} are after rewind()", story.promised, cache_.reserved(seq)));
  if (given_back > 0) count(Transition::kRewound);
  if (state) count(Transition::kStateRewound);
  if (std::ranges::any_of(flights_, [](const Flight& flight) { return !flight.ran; }) && story.writes.empty())
    count(Transition::kRewoundAhead);

  story.tokens.resize(static_cast<std::size_t>(len));
  story.history.resize(static_cast<std::size_t>(len));
  std::erase_if(story.writes, [len](const RowWrite& w) { return w.row.position >= len; });
  story.state.clear();
  std::int32_t left = len - story.computed;
  for (Flight& flight : flights_) {
    for (auto& [who, n] : flight.parts) {
      if (who != seq) continue;
      n = std::min(n, left);
      left -= n;
    }
    std::erase_if(flight.parts, [](const auto& part) { return part.second == 0; });
  }
  end();
}

bool KvRig::window_moved(SeqId seq) const {
  for (int g = 1; g < n_groups(); ++g) {
    const auto blocks = cache_.table(seq, g).blocks;
    if (!blocks.empty() && blocks.front() == kv::kNullBlock) return true;
  }
  return false;
}

SeqId KvRig::fork(SeqId seq) {
  if (!begin("fork")) return seq;
  const kv::CacheStats before = cache_.stats();
  const SeqId child = cache_.fork(seq);
  Story& parent = live_.at(seq);
  if (parent.len() % config_.block_size != 0) count(Transition::kForkByN);
  if (window_moved(seq)) count(Transition::kWindowBeforeFork);
  --parent.forks_left;
  Story story = parent;
  story.forks_left = 0;
  story.wanted_states.clear();
  story.wanted_tails.clear();
  if (tables(child) != tables(seq)) fail("a fork must stand on the same blocks");
  if (!std::ranges::equal(cache_.state(child).in, cache_.state(seq).in)) fail("a fork must go on from the same state");
  if (has_states()) count(Transition::kStateForked);
  const kv::CacheStats after = cache_.stats();
  if (after.free != before.free || after.in_use != before.in_use || after.reserved != before.reserved) {
    fail("fork() must copy nothing and promise nothing new");
  }
  live_.emplace(child, std::move(story));
  end();
  return child;
}

void KvRig::note_end(SeqId seq) {
  const Story& story = live_.at(seq);
  const auto table = cache_.table(seq, 0).blocks;
  const bool followed =
      std::ranges::any_of(table, [&](BlockId b) { return holders_[static_cast<std::size_t>(b)] > 1; });
  if (story.computed < story.prompt_len && followed) count(Transition::kLeaderLost);
  const bool copies = std::ranges::any_of(
      copies_, [&](const kv::BlockOp& op) { return std::ranges::find(table, op.dst) != table.end(); });
  if (copies && !story.writes.empty()) count(Transition::kPreemptWithCopy);
}

// The partial tail is kept unless it may be the target of a copy that never runs.
void KvRig::finish(SeqId seq) {
  if (!begin("finish")) return;
  note_end(seq);
  const Story& story = live_.at(seq);
  const std::int32_t tail = story.computed % config_.block_size;
  if (tail != 0 && story.tail_forked) count(Transition::kForkUnpublished);
  if (!story.tail_forked) {
    if (tail != 0 &&
        written_in_flight(cache_.table(seq, 0).blocks[static_cast<std::size_t>(story.computed / config_.block_size)]))
      count(Transition::kEndedInFlight);
    publish_all(story);
  }
  cache_.finish(seq);
  if (story.at_rest()) note_last_state(story);
  live_.erase(seq);
  end();
}

// The double's half of finish(): all computed tokens become known, the partial tail included.
void KvRig::publish_all(const Story& story) {
  if (!config_.share || story.computed == 0) return;
  note_partials(story, story.computed);
  known_.add(story.ns, std::span(story.tokens).first(static_cast<std::size_t>(story.computed)));
  if (story.computed % config_.block_size != 0)
    partials_.insert(story.history[static_cast<std::size_t>(story.computed) - 1]);
}

void KvRig::abandon(SeqId seq) {
  if (!begin("abandon")) return;
  note_end(seq);
  cache_.abandon(seq);
  live_.erase(seq);
  end();
}

void KvRig::clear() {
  if (!begin("clear")) return;
  const kv::CacheStats before = cache_.stats();
  const std::int64_t freed = cache_.clear().blocks;
  const kv::CacheStats after = cache_.stats();
  if (freed != before.cached || after.cached != 0 || after.free != before.free + freed) {
    fail(fmt::format("clear() freed {} of {} cached blocks, {} are left", freed, before.cached, after.cached));
  }
  if (after.in_use != before.in_use || after.reserved != before.reserved || after.pinned != before.pinned) {
    fail("clear() must leave what is held");
  }
  if (freed > 0 && after.in_use > 0) count(Transition::kCleared);
  watched_states_.clear();
  cleared_ |= freed > 0;
  end();
}

std::int32_t KvRig::match(std::span<const Token> tokens, const kv::Namespace& ns) {
  if (!begin("match")) return 0;
  const std::int32_t length = matched(tokens, ns);
  check_match(length, tokens, ns);
  return length;
}

void KvRig::drain() {
  while (!live_.empty() && failure_.empty()) finish(live_.begin()->first);
  while (!pins_.empty() && failure_.empty()) unpin(pins_.begin()->first);
  if (failure_.empty()) run_step();  // copies of sequences that are gone
  if (!failure_.empty()) return;
  const kv::CacheStats empty = cache_.stats();
  if (empty.in_use != 0 || empty.reserved != 0) return fail("nobody is left, yet blocks are in use or promised");
  std::int32_t longest = 1;
  while (cache_.blocks_needed(longest + 1, 1) <= empty.total) ++longest;
  const std::vector<Token> prompt(static_cast<std::size_t>(longest), 7);
  const auto seq = cache_.admit({.prompt = prompt, .ns = {.salt = "drain"}});
  if (!seq) return fail("a prompt that just fits an idle pool was refused");
  const auto chunk = static_cast<std::size_t>(config_.max_extend);
  std::vector<kv::BlockOp> copies;
  for (std::size_t at = 0; at < prompt.size(); at += chunk) {
    const auto part = std::span(prompt).subspan(at, std::min(chunk, prompt.size() - at));
    if (!cache_.extend(*seq, static_cast<std::int32_t>(part.size()), copies))
      return fail("a prompt that was admitted alone ran out of blocks");
    cache_.publish(*seq, part);
  }
  if (!copies.empty()) fail("a lone prompt forked");
  cache_.finish(*seq);
  verify();
}

std::vector<Row> KvRig::contiguous_rows(SeqId seq, int group) const {
  const Story& story = live_.at(seq);
  std::vector<Row> rows;
  for (std::int32_t p = 0; p < story.len(); ++p) {
    const auto at = static_cast<std::size_t>(p);
    rows.push_back({story.tokens[at], p, group, 1, story.history[at]});
  }
  return rows;
}

std::vector<Row> KvRig::stored_rows(SeqId seq, int group) const {
  const kv::TableView table = cache_.table(seq, group);
  std::vector<Row> rows;
  for (std::int32_t p = 0; p < live_.at(seq).len(); ++p) rows.push_back(store_.row(table.slot(p)));
  return rows;
}

}  // namespace coppice::test
