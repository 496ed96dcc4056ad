// What KvRig holds the cache to: the checks of each operation, and verify().
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "support/kv_rig.h"

namespace coppice::test {

using kv::BlockId;
using kv::kNullBlock;
using kv::SeqId;
using kv::Token;

// The first position of `group` that the last of `computed` tokens saw: who computed it keeps that.
std::int32_t KvRig::window_start(int group, std::int32_t computed) const {
  const kv::GroupSpec& spec = config_.groups[static_cast<std::size_t>(group)];
  if (spec.kind == kv::GroupKind::kFull || computed == 0) return 0;
  return spec.chunked ? computed - 1 - (computed - 1) % spec.window : std::max(0, computed - spec.window);
}

// The first position of `group` that the next token will see.
std::int32_t KvRig::next_window_start(int group, std::int32_t computed) const {
  const kv::GroupSpec& spec = config_.groups[static_cast<std::size_t>(group)];
  if (spec.kind == kv::GroupKind::kFull) return 0;
  return spec.chunked ? computed - computed % spec.window : std::max(0, computed + 1 - spec.window);
}

// The first group with the same window: `group` itself, where no other one has it.
int KvRig::first_alike(int group) const {
  const auto& groups = config_.groups;
  const kv::GroupSpec& spec = groups[static_cast<std::size_t>(group)];
  const auto alike = [&](const kv::GroupSpec& g) { return g.kind == spec.kind && g.window == spec.window; };
  return static_cast<int>(std::ranges::find_if(groups, alike) - groups.begin());
}

void KvRig::check_match(std::int32_t length, std::span<const Token> tokens, const kv::Namespace& ns) {
  const std::int32_t ever = known_.longest(ns, tokens), known = cut_before(tokens, ever);
  if (known < ever) count(Transition::kCutBeforeMedium);
  if (length > 0 && is_piece(tokens[static_cast<std::size_t>(length) - 1]) && !evicted())
    count(Transition::kEndsInMedia);
  if (length < known && is_inside(tokens, length)) count(Transition::kMediumHalved);
  if (length > known) {
    return fail(fmt::format("matched {} tokens, but only {} were ever computed", length, known));
  }
  const std::int32_t kept = has_states() ? longest_kept(tokens, ns, known) : known;
  if (length > kept) return fail(fmt::format("matched {} tokens, but no state was kept there", length));
  if (length != kept && !evicted()) {
    return fail(
        fmt::format("matched {} of {} known tokens, {} with a state, and nothing was evicted", length, known, kept));
  }
  // Blocks in use are never evicted: what a sequence published and a set holds is there.
  std::int32_t held = 0;
  if (config_.share) {
    const auto hold = [&](const Story& story) {
      if (story.ns != ns) return;
      const auto published = std::span(story.tokens).first(static_cast<std::size_t>(story.published));
      held = std::max(held, common_prefix(tokens, published));
    };
    for (const auto& [seq, story] : live_) hold(story);
    for (const auto& [id, pin] : pins_) {
      if (pin.ns != ns) continue;
      const std::int32_t common = common_prefix(tokens, pin.tokens);
      const bool whole = common == static_cast<std::int32_t>(pin.tokens.size());
      if (whole && length < common) return fail(fmt::format("matched {} tokens of {} pinned ones", length, common));
      if (whole && held < common && evicted()) count(Transition::kPinHit);
      held = std::max(held, common);
    }
  }
  held = cut_before(tokens, held);
  if (length >= held) return;
  if (has_states()) return count(Transition::kStateMissing);
  if (n_groups() == 1) return fail(fmt::format("matched {} tokens, but {} are held by a sequence", length, held));
  count(Transition::kHoleHit);
}

void KvRig::check_refusal(const kv::NoRoom& why, std::int32_t prompt_len, std::int32_t cached, int n_samples) {
  const kv::CacheStats stats = cache_.stats();
  const std::int64_t room = stats.free + stats.cached - stats.reserved;
  if (why.needed <= why.available || why.available > room) {
    return fail(fmt::format("refused with needed {} over available {}; free + cached - reserved is {}", why.needed,
                            why.available, room));
  }
  if (why.never != (why.needed > stats.total) &&
      why.never != (cache_.blocks_needed(prompt_len, n_samples) > stats.total)) {
    return fail(fmt::format("never = {} with needed {} of {} blocks", why.never, why.needed, stats.total));
  }
  if (!why.never && live_.empty() && pins_.empty()) return fail("refused by an idle pool: would wait for ever");
  // Truly out: the most it can need, on top of the cached blocks that its match pins.
  const std::int32_t bs = config_.block_size;
  const std::int64_t most = (prompt_len + bs - 1) / bs - cached / bs + 2LL * n_samples;
  const std::int64_t pinned = (cached + bs - 1) / bs;
  const std::int64_t states = config_.state_pages * (n_samples + 2);
  if (n_groups() * (most + pinned) + states <= room) fail(fmt::format("refused with room for {} blocks", room));
}

void KvRig::check_out_of_blocks(SeqId seq, const Tables& before, std::int32_t n_tokens, bool draft,
                                const kv::CacheStats& stats) {
  const Story& story = live_.at(seq);
  const std::int32_t bs = config_.block_size;
  const std::int32_t len = story.len();
  const std::int64_t grow = (len + n_tokens + bs - 1) / bs - (len + bs - 1) / bs;
  const std::int64_t most = n_groups() * (grow + (len % bs != 0 ? 1 : 0)) + config_.state_pages;
  const std::int64_t room = stats.free + stats.cached - (stats.reserved - cache_.reserved(seq));
  if (most <= room) fail(fmt::format("OutOfBlocks with room for {} blocks and a need of at most {}", room, most));
  // Who was let in gets through its prompt. Only what its windows left to others may be missing (budget.h), and a
  // draft's state.
  const std::int64_t least = n_groups() * grow + cache_.state_to_take(seq);
  const bool explained = draft || (story.left_to_others > 0 && least <= room + story.left_to_others);
  if (len + n_tokens <= story.prompt_len + 1 && !explained) {
    fail(fmt::format("OutOfBlocks at {} + {} tokens of a prompt of {}: a reserved block was not to be had", len,
                     n_tokens, story.prompt_len));
  }
  const kv::CacheStats after = cache_.stats();
  if (after.free != stats.free || after.cached != stats.cached || after.in_use != stats.in_use ||
      after.reserved != stats.reserved || tables(seq) != before) {
    fail("OutOfBlocks must change nothing");
  }
}

void KvRig::check_extended(SeqId seq, const Tables& before, std::size_t old_copies, std::int32_t n_tokens) {
  Story& story = live_.at(seq);
  const std::int32_t bs = config_.block_size;
  const std::int32_t len = story.len() - n_tokens;
  const Tables after = tables(seq);
  const auto tail = static_cast<std::size_t>(len / bs);
  std::size_t expected_copies = 0;
  for (std::size_t g = 0; g < after.size(); ++g) {
    if (after[g].size() != static_cast<std::size_t>((story.len() + bs - 1) / bs)) {
      return fail(fmt::format("group {}: {} blocks for {} tokens", g, after[g].size(), story.len()));
    }
    for (std::size_t i = 0; i < before[g].size(); ++i) {
      if (after[g][i] == before[g][i]) continue;
      if (i != tail || len % bs == 0) return fail(fmt::format("group {}: extend() moved block {}", g, i));
      const kv::BlockOp wanted{
          .src = before[g][i], .dst = after[g][i], .n_slots = len % bs, .group = static_cast<int>(g)};
      const auto planned = std::span(copies_).subspan(old_copies);
      if (std::ranges::count(planned, wanted) != 1) return fail(fmt::format("group {}: no copy for its fork", g));
      ++expected_copies;
      story.tail_forked = true;
      if (g == 0 && written_in_flight(before[g][i])) count(Transition::kTailTakenAhead);
    }
    if (len % bs == 0) continue;
    const BlockId old_tail = before[g][tail];
    const bool forked = after[g][tail] != old_tail;
    if (!forked && holders_[static_cast<std::size_t>(old_tail)] > 1) {
      return fail(fmt::format("group {}: wrote into block {}, which others hold", g, old_tail));
    }
    if (g != 0) continue;
    if (forked) count(Transition::kForkMidBlock);
    if (forked && is_inside(story.tokens, len)) count(Transition::kForkInMedium);
    if (!forked && old_tail == story.once_shared_tail) count(Transition::kLastOwnerWrite);
    story.once_shared_tail = kNullBlock;
  }
  if (copies_.size() - old_copies != expected_copies) fail("a copy that forks nothing");
}

void KvRig::check_published(SeqId seq, const Tables& before, std::int32_t old_published) {
  const Story& story = live_.at(seq);
  const std::int32_t bs = config_.block_size;
  const Tables after = tables(seq);
  bool merged = false;
  for (std::size_t g = 0; g < after.size(); ++g) {
    if (after[g].size() != before[g].size()) return fail(fmt::format("group {}: publish() resized a table", g));
    const auto alike = static_cast<std::size_t>(first_alike(static_cast<int>(g)));
    for (std::size_t i = 0; i < after[g].size(); ++i) {
      if (alike != g && after[g][i] != kNullBlock) {
        const bool filled = after[g][i] == before[g][i];
        if (filled != (after[alike][i] == before[alike][i])) {
          return fail(fmt::format("block {}: merged in one of groups {} and {}, entered in the other", i, alike, g));
        }
        if (filled && after[0][i] != before[0][i]) count(Transition::kHoleFilledAlike);
      }
      if (after[g][i] == before[g][i] || after[g][i] == kNullBlock) continue;
      const auto first = static_cast<std::int32_t>(i) * bs;
      if (first < old_published || first + bs > story.published || !config_.share) {
        return fail(fmt::format("group {}: publish() moved block {}, which it did not publish", g, i));
      }
      merged = true;
    }
  }
  if (merged) count(Transition::kMergedAtPublish);
  if (merged && !story.at_rest()) count(Transition::kMergedAhead);
}

void KvRig::note_left_to_others(SeqId seq, const Tables& before) {
  const Tables after = tables(seq);
  for (std::size_t g = 1; g < after.size(); ++g) {
    for (std::size_t i = 0; i < after[g].size(); ++i) {
      live_.at(seq).left_to_others += before[g][i] != after[g][i] && after[g][i] == kNullBlock && is_held(before[g][i]);
    }
  }
}

bool KvRig::is_held(BlockId block) const {
  const auto in = [block](const auto& blocks) { return std::ranges::find(blocks, block) != std::end(blocks); };
  for (int g = 0; g < n_groups(); ++g) {
    for (const auto& [seq, story] : live_) {
      if (in(cache_.table(seq, g).blocks)) return true;
    }
    for (const auto& [pin, story] : pins_) {
      if (in(cache_.table(pin, g).blocks)) return true;
    }
  }
  return false;
}

void KvRig::verify_figures() {
  std::ranges::fill(holders_, 0);
  for (const auto& [seq, story] : live_) {
    for (int g = 0; g < n_groups(); ++g) {
      for (const BlockId b : cache_.table(seq, g).blocks) ++holders_[static_cast<std::size_t>(b)];
    }
  }
  for (const auto& [id, pin] : pins_) {
    for (int g = 0; g < n_groups(); ++g) {
      for (const BlockId b : cache_.table(id, g).blocks) ++holders_[static_cast<std::size_t>(b)];
    }
  }
  count_state_holders();
  holders_[kNullBlock] = 0;

  const kv::CacheStats s = cache_.stats();
  const auto check = [&](const char* name, std::int64_t got, std::int64_t wanted) {
    if (got != wanted) fail(fmt::format("stats.{} is {}, recomputed {}", name, got, wanted));
  };
  const auto held_by = [&](int n) { return std::ranges::count_if(holders_, [n](int h) { return h >= n; }); };
  check("total", s.total, config_.num_blocks - 1);
  check("free + cached + in_use", s.free + s.cached + s.in_use, s.total);
  check("in_use", s.in_use, held_by(1));
  check("shared", s.shared, held_by(2));
  check("max_refs", s.max_refs, std::ranges::max(holders_));
  check("pinned", s.pinned, static_cast<std::int64_t>(blocks_of_pins().size()));
  check("pins", s.pins, static_cast<std::int64_t>(pins_.size()));
  std::int64_t spared = 0;
  for (const auto holders : holders_) spared += std::max<std::int64_t>(holders - 1, 0);
  check("spared", s.spared, spared);
  check("sequences", s.sequences, static_cast<std::int64_t>(live_.size()));
  check("bytes_in_use", static_cast<std::int64_t>(s.bytes_in_use),
        s.in_use * static_cast<std::int64_t>(config_.bytes_per_block));
  std::int64_t reserved = 0;
  for (const auto& [seq, story] : live_) reserved += cache_.reserved(seq);
  check("reserved", s.reserved, reserved);
  if (reserved > s.free + s.cached)
    fail(fmt::format("{} blocks are promised, {} can be had", reserved, s.free + s.cached));
  if (s.bytes_peak < std::max(peak_seen_, s.bytes_in_use)) fail("the peak went down");
  peak_seen_ = s.bytes_peak;
  if (!config_.share && s.cached != 0) fail("share = false, yet blocks are cached");
}

void KvRig::verify_sequence(SeqId seq, const Story& story) {
  const kv::Lengths lengths = cache_.lengths(seq);
  if (lengths.cached_len > lengths.computed_len || lengths.computed_len != story.computed ||
      lengths.len != story.len()) {
    return fail(fmt::format("lengths {} <= {} <= {}, expected computed {} of {}", lengths.cached_len,
                            lengths.computed_len, lengths.len, story.computed, story.len()));
  }
  if (cache_.tokens(seq) != to_kv(std::span(story.tokens).first(static_cast<std::size_t>(story.computed))))
    return fail("the sequence's tokens changed");
  const std::int32_t bs = config_.block_size;
  for (int g = 0; g < n_groups(); ++g) {
    const kv::TableView table = cache_.table(seq, g);
    if (table.block_size != bs || table.blocks.size() != static_cast<std::size_t>((story.len() + bs - 1) / bs)) {
      return fail(fmt::format("group {}: {} blocks for {} tokens", g, table.blocks.size(), story.len()));
    }
    const auto alike = cache_.table(seq, first_alike(g)).blocks;
    const auto holders = [&](BlockId b) { return holders_[static_cast<std::size_t>(b)]; };
    if (!std::ranges::equal(table.blocks, alike, {}, holders, holders)) {
      return fail(fmt::format("group {} is not shared as {}, which has its window", g, first_alike(g)));
    }
    const std::int32_t start = std::max(window_start(g, story.computed), next_window_start(g, story.matched));
    for (std::int32_t i = 0; i * bs < story.len(); ++i) {
      const bool wanted = i >= start / bs;
      const bool there = table.blocks[static_cast<std::size_t>(i)] != kNullBlock;
      if (wanted != there) {
        return fail(fmt::format("group {}, block {}: {} though the window starts at {}", g, i,
                                there ? "held" : "dropped", start));
      }
    }
    if (copies_pending() || story.broken) continue;  // contents are settled when the step is run
    for (std::int32_t p = start; p < story.computed; ++p) {
      const auto at = static_cast<std::size_t>(p);
      const Row wanted{story.tokens[at], p, g, 1, story.history[at]};
      const kv::Slot slot = table.slot(p);
      for (int layer = 0; layer < store_.n_layers(g); ++layer) {
        const Row stored = store_.row(slot, layer);
        if (stored == wanted) continue;
        return fail(fmt::format(
            "sequence {}, group {}, layer {}, position {} (slot {} of block {}): {} is stored, "
            "expected {}",
            static_cast<std::uint64_t>(seq), g, layer, p, slot % bs, slot / bs, to_text(stored), to_text(wanted)));
      }
    }
  }
}

// What is promised is for the blocks that its prompt lacks yet, and for one more and one fork of each group and sample.
// And for states: one for each sample, one that the others read when they part, one for a state that is kept; it is not
// given back if others let go of a frozen state before its next step.
void KvRig::verify_reservation(SeqId seq, const Story& story) {
  const std::int32_t bs = config_.block_size;
  const std::int32_t to_come = std::max(0, (story.prompt_len + bs - 1) / bs - (story.len() + bs - 1) / bs);
  const std::int32_t most = n_groups() * (to_come + story.tails_shared + 2 * (1 + story.forks_left)) +
                            config_.state_pages * (story.forks_left + 3);
  if (cache_.reserved(seq) <= most) return;
  fail(fmt::format("sequence {}: {} blocks are promised, and {} can be of use", static_cast<std::uint64_t>(seq),
                   cache_.reserved(seq), most));
}

void KvRig::verify() {
  if (!failure_.empty()) return;
  if (check_integrity_) {
    if (const std::string why = cache_.check_integrity(); !why.empty()) return fail("check_integrity(): " + why);
  }
  if (also_) {
    if (const std::string why = also_(); !why.empty()) return fail(why);
  }
  verify_figures();
  for (const auto& [pin, story] : pins_) {
    if (failure_.empty()) verify_pin(pin, story);
  }
  for (auto& [seq, story] : live_) {
    if (!failure_.empty()) return;
    verify_sequence(seq, story);
    verify_state(seq, story);
    verify_reservation(seq, story);
    if (story.computed % config_.block_size == 0) continue;
    const BlockId tail = cache_.table(seq, 0).blocks[static_cast<std::size_t>(story.computed / config_.block_size)];
    if (holders_[static_cast<std::size_t>(tail)] > 1) story.once_shared_tail = tail;
  }
}

}  // namespace coppice::test
