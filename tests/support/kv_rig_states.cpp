// What KvRig knows of the states of recurrent layers: where they are to be kept, who holds them, and what is in them.
#include <fmt/format.h>

#include <algorithm>

#include "support/kv_rig.h"

namespace coppice::test {

using kv::BlockId;
using kv::SeqId;
using kv::Token;

std::uint64_t KvRig::history_at(const Story& story, std::int32_t length) const {
  return length == 0 ? history_root(story.ns) : story.history[static_cast<std::size_t>(length) - 1];
}

void KvRig::keep_state(SeqId seq, std::int32_t position) {
  if (!begin("keep_state")) return;
  cache_.keep_state(seq, position);
  Story& story = live_.at(seq);
  story.wanted_states.push_back(whole_cut_before(story.prompt, position, config_.block_size));
  end();
}

void KvRig::note_state_hit(SeqId seq, Story& story, std::span<const Token> prompt, std::int32_t known_before) {
  if (!has_states()) return;
  const std::int32_t bs = config_.block_size;
  const auto all_but_last = prompt.first(prompt.size() - 1);
  const auto last_cut = [&](std::int32_t at) { return whole_cut_before(prompt, at, bs); };
  const std::int32_t known =
      last_cut(known_.longest(story.ns, all_but_last));  // what was evicted of it: then another place is wanted
  story.wanted_states.push_back(last_cut(story.prompt_len - 1));
  for (std::int32_t branch = known; branch > story.cached; branch -= bs) {
    if (branch == known || evicted()) story.wanted_states.push_back(last_cut(branch));
  }
  if (known_before == 0) return;
  count(Transition::kStateHit);
  if (known_before % bs != 0) count(Transition::kStateInBlock);
  if (matched(all_but_last, story.ns) == known_before) return;
  count(Transition::kStateTaken);
  cleared_ = true;  // one that was kept is there no more
  note_lost_states();
  if (cache_.state(seq).in.empty()) fail("a sequence started without the state that it matched");
}

// A state stood in the tree when the step was planned, and the sequence may have taken it.
void KvRig::note_state_taken(SeqId seq, std::span<const Token> before) {
  const auto [in, out] = cache_.state(seq);
  if (in.front() != out.front() || matched(before, live_.at(seq).ns) == std::ssize(before)) return;
  count(Transition::kStateTaken);
  cleared_ = true;
  note_lost_states();
}

void KvRig::plan_state(SeqId seq, Story& story, std::int32_t first) {
  if (!has_states() || story.writes.empty()) return;
  const auto [in, out] = cache_.state(seq);
  StateWork work{
      .in = {in.begin(), in.end()}, .out = {out.begin(), out.end()}, .in_length = first, .out_length = story.len()};
  if (first == 0) work.in.clear();
  work.in_history = history_at(story, first);
  work.out_history = history_at(story, story.len());
  if (std::ssize(work.out) != config_.state_pages)
    fail(fmt::format("a state of {} pages is to be written", work.out.size()));
  for (const BlockId page : work.out) {
    const int others = holders_[static_cast<std::size_t>(page)] - (work.in == work.out ? 1 : 0);
    if (others > 0) fail(fmt::format("a state is written to block {}, which others hold", page));
  }
  story.state = {std::move(work)};
}

// Whether the step's last state stays follows from where the step ended; that there was room for it is only checked
// where nothing else frees blocks.
void KvRig::note_kept_state(SeqId seq, const Story& story) {
  if (!has_states() || !config_.share) return;
  const std::int32_t at = story.computed;
  const bool whole = at % config_.block_size == 0;
  const std::int32_t stride = config_.state_stride, next = (at + stride - 1) / stride * stride;
  const bool at_stride = whole_cut_before(story.prompt, next, config_.block_size) == at;
  const bool wanted = whole && (at_stride || std::ranges::count(story.wanted_states, at) > 0);
  const bool known = kept_states_.contains(history_at(story, at));
  // At its last whole block so far, and gone when the sequence is a block further.
  const std::int32_t prompt_end = (story.prompt_len + config_.block_size - 1) / config_.block_size * config_.block_size;
  const bool is_end = config_.keep_ends && whole && !wanted && at >= prompt_end;
  const bool there = matched(story.tokens, story.ns) == at;
  if (there && is_end) {
    kept_states_.insert(history_at(story, at));
    const std::int32_t before = std::exchange(ends_[seq], at);
    const std::span<const Token> until(story.tokens.data(), static_cast<std::size_t>(before));
    if (before > 0 && matched(until, story.ns) != before) kept_states_.erase(history_at(story, before));
    return;
  }
  if (there && !wanted && !known) return fail(fmt::format("a state was kept at {}, where none is wanted", at));
  if (there) {
    if (!known) count(Transition::kStateKept);
    kept_states_.insert(history_at(story, at));
    if (watched_states_.size() >= 24) watched_states_.erase(watched_states_.begin());
    watched_states_.push_back({story.ns, story.tokens});
    return;
  }
  const bool must = at_stride || at == whole_cut_before(story.prompt, story.prompt_len - 1, config_.block_size);
  if (!wanted || !must || story.forks_left > 0) return;
  count(Transition::kStateNoRoom);
  const kv::CacheStats stats = cache_.stats();
  if (n_groups() == 1 && stats.free + stats.cached - stats.reserved >= config_.state_pages + std::ssize(live_))
    fail(fmt::format("no state was kept at {}, and there is room for it", at));
}

void KvRig::note_last_state(const Story& story) {
  if (!has_states() || !config_.share || story.len() < config_.block_size) return;
  kept_states_.insert(history_at(story, story.len()));
  count(Transition::kStateKeptAtEnd);
  // With windows the tree's tail may have a hole, where it has these tokens already.
  if (n_groups() == 1 && matched(story.tokens, story.ns) != story.len())
    fail("the state of a sequence that ended is not there");
  if (watched_states_.size() >= 24) watched_states_.erase(watched_states_.begin());
  watched_states_.push_back({story.ns, story.tokens});
}

// Eviction has taken something.
void KvRig::note_lost_states() {
  std::erase_if(watched_states_, [&](const WatchedState& watched) {
    const auto length = static_cast<std::int32_t>(watched.tokens.size());
    const kv::MatchEnd end = cache_.explain(to_kv(watched.tokens), watched.ns);
    if (end.length == length) return false;
    count(end.length + end.stateless == length ? Transition::kStateEvicted : Transition::kStateWentAlong);
    return true;
  });
}

std::int32_t KvRig::longest_kept(std::span<const Token> tokens, const kv::Namespace& ns, std::int32_t known) const {
  std::uint64_t history = history_root(ns);
  std::int32_t longest = 0;
  for (std::int32_t p = 0; p < known; ++p) {
    history = history_next(history, tokens[static_cast<std::size_t>(p)]);
    if (kept_states_.contains(history)) longest = p + 1;
  }
  return longest;
}

void KvRig::count_state_holders() {
  const auto hold = [&](std::span<const BlockId> pages) {
    for (const BlockId page : pages) ++holders_[static_cast<std::size_t>(page)];
  };
  for (const auto& [seq, story] : live_) {
    const auto [in, out] = cache_.state(seq);
    hold(out);
    if (!in.empty() && in.front() != out.front()) hold(in);
  }
  for (const auto& [id, pin] : pins_) hold(cache_.state(id));
}

void KvRig::verify_state(SeqId seq, const Story& story) {
  if (!has_states() || story.broken || story.computed == 0) return;
  const auto [in, out] = cache_.state(seq);
  const bool written = story.computed < story.len() && story.state.empty();  // by a step that is not published yet
  if (written && in.front() == out.front()) return;
  if (std::ssize(in) != config_.state_pages)
    return fail(fmt::format("a sequence of {} tokens has no state", story.computed));
  const std::string why = store_.error_in_state(in, story.computed, history_at(story, story.computed));
  if (!why.empty()) fail(fmt::format("sequence {}: {}", static_cast<std::uint64_t>(seq), why));
}

}  // namespace coppice::test
