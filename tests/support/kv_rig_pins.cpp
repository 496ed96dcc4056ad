// What KvRig knows of pins: their operations, and what they must hold.
#include <fmt/format.h>

#include <algorithm>

#include "support/kv_rig.h"

namespace coppice::test {

using kv::BlockId;
using kv::kNullBlock;
using kv::Token;

std::optional<kv::Pinned> KvRig::pin(const PinWords& request) {
  if (!begin("pin")) return std::nullopt;
  const kv::CacheStats before = cache_.stats();
  const std::set<BlockId> others = blocks_of_pins();
  const auto pinned = cache_.pin({.prefix = to_kv(request.prefix),
                                  .ns = request.ns,
                                  .owner = request.owner,
                                  .most = request.most,
                                  .most_of_owner = request.most_of_owner});
  const kv::CacheStats after = cache_.stats();
  if (after.free != before.free || after.cow_forks != before.cow_forks || after.evictions != before.evictions ||
      after.reserved != before.reserved) {
    fail("pin() must take references, nothing else");
  }
  if (!pinned) {
    if (after.in_use != before.in_use || after.pinned != before.pinned) fail("a refused pin() took blocks");
    check_pin_refusal(request, pinned.error(), before);
    if (pinned.error().why != kv::NoPin::Why::kNotCached) count(Transition::kPinRefused);
    end();
    return std::nullopt;
  }
  count(Transition::kPinned);
  const auto table = cache_.table(pinned->id, 0).blocks;
  if (std::ranges::any_of(table, [&](BlockId b) { return others.contains(b); })) count(Transition::kPinOverlaps);
  const auto held = request.prefix.first(static_cast<std::size_t>(pinned->tokens));
  pins_.emplace(pinned->id, PinStory{request.ns, std::string(request.owner), {held.begin(), held.end()}});
  check_pin(request, *pinned, before);
  end();
  return *pinned;
}

void KvRig::unpin(kv::PinId pin) {
  if (!begin("unpin")) return;
  const kv::CacheStats before = cache_.stats();
  cache_.unpin(pin);
  pins_.erase(pin);
  const kv::CacheStats after = cache_.stats();
  if (after.free != before.free) fail("unpin() must leave its blocks cached");
  if (after.in_use < before.in_use) count(Transition::kPinEnded);
  end();
}

std::set<BlockId> KvRig::blocks_of_pins(const std::string* owner) const {
  std::set<BlockId> blocks;
  for (const auto& [id, pin] : pins_) {
    if (owner != nullptr && pin.owner != *owner) continue;
    for (int g = 0; g < n_groups(); ++g) {
      const auto table = cache_.table(id, g).blocks;
      blocks.insert(table.begin(), table.end());
    }
    const auto state = cache_.state(id);
    blocks.insert(state.begin(), state.end());
  }
  blocks.erase(kNullBlock);
  return blocks;
}

void KvRig::check_pin(const PinWords& request, const kv::Pinned& pinned, const kv::CacheStats& before) {
  const std::int32_t bs = config_.block_size;
  if (pinned.tokens <= 0 || pinned.tokens % bs != 0) return fail(fmt::format("{} tokens pinned", pinned.tokens));
  const kv::CacheStats after = cache_.stats();
  const std::string owner(request.owner);
  const auto of_owner = static_cast<std::int64_t>(blocks_of_pins(&owner).size());
  if (after.pinned > request.most || of_owner > request.most_of_owner) {
    return fail(fmt::format("{} blocks pinned, {} of the owner: {} and {} were allowed", after.pinned, of_owner,
                            request.most, request.most_of_owner));
  }
  if (after.in_use - before.in_use > after.pinned - before.pinned) fail("more blocks in use than were pinned");
  const std::int32_t cached = whole_cut_before(request.prefix, matched(request.prefix, request.ns), bs);
  if (n_groups() == 1 && !has_states() && pinned.tokens != cached)
    fail(fmt::format("{} of {} tokens pinned", pinned.tokens, cached));
  const auto words = request.prefix.first(static_cast<std::size_t>(pinned.tokens));
  const auto& named = named_.try_emplace(pinned.digest, words.begin(), words.end()).first->second;
  if (config_.hash(std::as_bytes(words)) != kv::Digest{} && !std::ranges::equal(named, words))
    fail("two texts have one digest");
  // Who asks for the prefix alone finds all of it but the last token, if its window was there.
  check_match(matched(request.prefix, request.ns), request.prefix, request.ns);
}

void KvRig::check_pin_refusal(const PinWords& request, const kv::NoPin& no_pin, const kv::CacheStats& stats) {
  const std::int32_t bs = config_.block_size;
  using enum kv::NoPin::Why;
  if (no_pin.why == kNotCached) {
    const std::int32_t cached = whole_cut_before(request.prefix, matched(request.prefix, request.ns), bs) / bs;
    if (n_groups() == 1 && !has_states() && cached > 0)
      fail(fmt::format("{} cached blocks could not be pinned", cached));
    return;
  }
  const auto wanted = static_cast<std::int64_t>(request.prefix.size()) / bs * n_groups() + config_.state_pages;
  const std::string owner(request.owner);
  const auto of_owner = static_cast<std::int64_t>(blocks_of_pins(&owner).size());
  const bool of_owners = no_pin.why == kOwnersShare, of_all = no_pin.why == kShare;
  const std::int64_t had = of_owners ? of_owner : of_all ? stats.pinned : 0;
  const std::int64_t most = of_owners ? request.most_of_owner
                            : of_all  ? request.most
                                      : stats.free + stats.cached - stats.reserved;
  if (no_pin.needed <= no_pin.most || no_pin.needed > had + wanted || no_pin.most != most) {
    fail(fmt::format("a pin was refused for {} blocks of {}; there were {} of {}, and {} more at most", no_pin.needed,
                     no_pin.most, had, most, wanted));
  }
}

// A pin's blocks hold what was computed for its tokens, whatever has been evicted meanwhile.
void KvRig::verify_pin(kv::PinId pin, const PinStory& story) {
  const std::int32_t bs = config_.block_size;
  const auto length = static_cast<std::int32_t>(story.tokens.size());
  if (has_states()) {
    std::uint64_t history = history_root(story.ns);
    for (const Token token : story.tokens) history = history_next(history, token);
    if (cache_.state(pin).empty()) return fail("a pin has no state");
    if (const std::string why = store_.error_in_state(cache_.state(pin), length, history); !why.empty())
      return fail("a pin: " + why);
  }
  for (int g = 0; g < n_groups(); ++g) {
    const kv::TableView table = cache_.table(pin, g);
    if (static_cast<std::int32_t>(table.blocks.size()) * bs != length) {
      return fail(fmt::format("a pin of {} tokens has {} blocks in group {}", length, table.blocks.size(), g));
    }
    std::uint64_t h = history_root(story.ns);
    for (std::int32_t p = 0; p < length; ++p) {
      h = history_next(h, story.tokens[static_cast<std::size_t>(p)]);
      if (table.blocks[static_cast<std::size_t>(p / bs)] == kNullBlock) {
        if (p >= next_window_start(g, length)) return fail(fmt::format("group {}: position {} is not pinned", g, p));
        continue;
      }
      const Row wanted{story.tokens[static_cast<std::size_t>(p)], p, g, 1, h};
      const Row stored = store_.row(table.slot(p));
      if (stored != wanted) {
        return fail(fmt::format("a pin, group {}, position {}: {} is stored, expected {}", g, p, to_text(stored),
                                to_text(wanted)));
      }
    }
  }
}

}  // namespace coppice::test
