#include "kv/arrivals.h"

#include <algorithm>

#include "check/assert.h"

namespace coppice::kv {

std::int32_t Arrivals::first_awaited(int group, std::size_t from, std::int32_t len) const {
  return std::max(static_cast<std::int32_t>(from), config_.first_needed_block(group, len));
}

bool Arrivals::await(CacheSequence& seq, std::int32_t len) {
  const int bs = config_.block_size;
  COPPICE_ASSERT(config_.share && seq.len == seq.computed_len() && seq.len % bs == 0 && len % bs == 0 && len > seq.len);
  COPPICE_ASSERT(seq.may_be_cut(len));
  const std::int32_t blocks = len / bs;
  std::int64_t needed = keeper_.to_take(seq, /*draft=*/true);
  for (int g = 0; g < config_.n_groups(); ++g)
    needed += std::max(0, blocks - first_awaited(g, seq.tables[static_cast<std::size_t>(g)].size(), len));
  if (needed > budget_.available(seq.reserved)) return false;
  for (BlockTable& table : seq.tables) table.reserve(static_cast<std::size_t>(blocks));
  seq.tokens.make_room(static_cast<std::size_t>(len - seq.len), 0);

  keeper_.begin_step(seq, /*draft=*/true);
  keeper_.keep_at(seq, len);
  for (int g = 0; g < config_.n_groups(); ++g) {
    BlockTable& table = seq.tables[static_cast<std::size_t>(g)];
    const std::int32_t first = first_awaited(g, table.size(), len);
    while (std::ssize(table.ids()) < std::min(first, blocks)) table.push_null();
    while (std::ssize(table.ids()) < blocks) table.push(budget_.allocate_slots(seq));
  }
  seq.len = len;
  seq.awaits = true;
  return true;
}

void Arrivals::arrived(CacheSequence& seq, TextView tokens) {
  const auto n = static_cast<std::int32_t>(tokens.size());
  COPPICE_ASSERT(seq.awaits && n % config_.block_size == 0 && n <= seq.len - seq.computed_len());
  COPPICE_ASSERT(n == seq.len - seq.computed_len() || (config_.n_groups() == 1 && config_.state_pages == 0));
  seq.tokens.append(tokens);
  if (n > 0) publisher_.publish_step(seq);
  const auto behind = config_.blocks_for(seq.len) - config_.blocks_for(seq.computed_len());
  seq.unpromised = std::min(seq.unpromised, behind * config_.n_groups());
  seq.awaits = seq.len > seq.computed_len();
}

}  // namespace coppice::kv
