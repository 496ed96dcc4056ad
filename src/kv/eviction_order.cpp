#include "kv/eviction_order.h"

namespace coppice::kv {

void EvictionOrder::add(BlockId id, int group, Heat heat) {
  Link& link = links_[index(id)];
  Ends& ends = ends_[static_cast<std::size_t>(group)];
  link.group = group;
  if (heat == Heat::kHot) {
    link.tick = now_;
    link.colder = ends.hot;
    link.hotter = kNullBlock;
    (ends.hot == kNullBlock ? ends.cold : links_[index(ends.hot)].hotter) = id;
    ends.hot = id;
  } else {
    link.tick = 0;
    link.hotter = ends.cold;
    link.colder = kNullBlock;
    (ends.cold == kNullBlock ? ends.hot : links_[index(ends.cold)].colder) = id;
    ends.cold = id;
  }
}

void EvictionOrder::remove(BlockId id) {
  Link& link = links_[index(id)];
  Ends& ends = ends_[static_cast<std::size_t>(link.group)];
  (link.colder == kNullBlock ? ends.cold : links_[index(link.colder)].hotter) = link.hotter;
  (link.hotter == kNullBlock ? ends.hot : links_[index(link.hotter)].colder) = link.colder;
  link = Link{};
}

BlockId EvictionOrder::next() const {
  BlockId best = kNullBlock;
  for (const Ends& ends : ends_) {
    if (ends.cold == kNullBlock) continue;
    if (best == kNullBlock || links_[index(ends.cold)].tick < links_[index(best)].tick) best = ends.cold;
  }
  return best;
}

}  // namespace coppice::kv
