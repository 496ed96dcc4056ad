#include "engine/piece_planner.h"

#include <algorithm>
#include <utility>

#include "engine/piece_names.h"
#include "kv/block_bytes.h"
#include "kv/digest.h"

namespace coppice::engine {

std::int32_t PiecePlanner::whole_match(kv::TextView text, const kv::Namespace& ns, std::int32_t matched) const {
  const std::int32_t bs = cache_.config().block_size;
  for (;;) {
    const std::int32_t whole = matched / bs * bs;
    if (whole == 0) return 0;
    matched = cache_.match(text.first(static_cast<std::size_t>(whole)), ns);
    if (matched == whole) return whole;
  }
}

std::vector<WantedPiece> PiecePlanner::pieces(kv::TextView text, const kv::Namespace& ns, std::int32_t base) const {
  const kv::CacheConfig& config = cache_.config();
  const auto bs = static_cast<std::size_t>(config.block_size);
  const auto space = space_name(ns);
  kv::Digest digest = kv::root_digest(config.hash, config.model, config.layout, ns);
  if (base > 0) {
    const auto blocks = cache_.whole_blocks(text.first(static_cast<std::size_t>(base)), ns);
    digest = cache_.storables().digest_of(blocks.back()).value();
  }
  std::vector<WantedPiece> wanted;
  for (auto at = static_cast<std::size_t>(base); at < text.size(); at += bs) {
    const kv::TextView block = text.subspan(at, bs);
    digest = kv::block_digest(config.hash, digest, block);
    const std::vector<std::byte> own = kv::spell(block);
    for (int g = 0; g < pieces_of_block(); ++g) {
      wanted.push_back({.group = g,
                        .block = static_cast<std::int32_t>(at / bs),
                        .name = piece_name(config_.model, space, digest, g),
                        .text = own});
    }
  }
  return wanted;
}

std::int32_t PiecePlanner::usable_end(kv::TextView text, std::int32_t base, const std::vector<bool>& held) const {
  const kv::CacheConfig& config = cache_.config();
  const std::int32_t bs = config.block_size, first = base / bs;
  const int each = pieces_of_block(), states = state_group();
  const auto has = [&](int g, std::int32_t b) { return held[static_cast<std::size_t>((b - first) * each + g)]; };
  const auto blocks = static_cast<std::int32_t>(held.size()) / each;
  std::vector<std::int32_t> since(static_cast<std::size_t>(states), first);  // no hole from there on
  std::int32_t best = base;
  for (std::int32_t b = first; b < first + blocks; ++b) {
    if (!has(0, b)) break;
    const std::int32_t length = (b + 1) * bs;
    bool usable = text.may_be_cut(length) && (!has_states() || has(states, b));
    for (int g = 1; g < states; ++g) {
      std::int32_t& begin = since[static_cast<std::size_t>(g)];
      if (!has(g, b)) begin = b + 1;
      usable = usable && begin <= std::max(first, config.first_needed_block(g, length));
    }
    if (usable) best = length;
  }
  return best;
}

void PiecePlanner::keep_needed(std::vector<WantedPiece>& pieces, std::int32_t end) const {
  const kv::CacheConfig& config = cache_.config();
  const std::int32_t blocks = end / config.block_size;
  std::erase_if(pieces, [&](const WantedPiece& piece) {
    if (piece.block >= blocks) return true;
    if (piece.group == state_group()) return piece.block != blocks - 1;
    return piece.block < config.first_needed_block(piece.group, end);
  });
  // What is of use only together comes first: less is loaded in vain.
  std::ranges::sort(pieces, {}, [](const WantedPiece& piece) { return std::pair(-piece.group, piece.block); });
}

}  // namespace coppice::engine
