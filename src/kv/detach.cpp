// Detached sets of a Cache: what a sequence leaves to those who go on from where it stood, any number of times.
#include <cassert>
#include <utility>

#include "kv/cache_impl.h"
#include "kv/faults.h"

namespace coppice::kv {

DetachedId Cache::detach(SeqId id) {
  Impl& impl = *impl_;
  Sequence& seq = impl.at(id);
  assert(seq.len() == seq.computed_len);
  impl.publish_partial_tail(seq);
  const DetachedId set{++impl.last_id};
  impl.detached.reserve(impl.detached.size() + 1);
  impl.detached.emplace(set,
                        DetachedSet{std::move(seq.ns), std::move(seq.tokens), std::move(seq.tables), seq.published});
  impl.unreserve(seq);
  impl.sequences.erase(id);
  return set;
}

std::expected<SeqId, NoRoom> Cache::adopt(DetachedId id, int n_samples) {
  Impl& impl = *impl_;
  const DetachedSet& set = impl.detached.at(id);
  const std::int64_t needed = std::int64_t{n_samples} * impl.spare();
  const std::int64_t room = impl.available(0);  // the set holds its blocks
  if (needed > room && !fault(Fault::kReserveNothing)) {
    return std::unexpected(NoRoom{needed, room, needed > impl.pool.total()});
  }
  Sequence seq;
  seq.ns = set.ns;
  seq.tokens = set.tokens;
  for (const BlockTable& table : set.tables) seq.tables.push_back(table.share());
  seq.cached_len = seq.computed_len = seq.len();
  seq.published = set.published;
  seq.prompt_blocks = impl.blocks_for(seq.len());
  return impl.start(std::move(seq), needed);
}

void Cache::drop(DetachedId id) {
  impl_->detached.erase(id);
}

}  // namespace coppice::kv
