#include "simulator.h"

#include <limits>
#include <set>
#include <utility>

namespace coppice::bench {

namespace {

class Simulator {
 public:
  Simulator(const Trace& trace, std::int32_t budget, Rule rule)
      : trace_(trace), budget_(budget), rule_(rule), blocks_(static_cast<std::size_t>(trace.distinct)) {
    if (rule == Rule::kOptimum) find_next_uses();
  }

  std::int64_t run() {
    std::int64_t served = 0;
    for (std::size_t r = 0; r < trace_.requests.size(); ++r) served += serve(r);
    return served;
  }

 private:
  struct Block {
    std::int32_t parent = -1;
    std::int32_t children = 0;  // that are cached
    std::int64_t worth = 0;     // the least goes first
    bool cached = false;
  };
  Block& at(std::int32_t id) { return blocks_[static_cast<std::size_t>(id)]; }

  // next_uses_[r]: of each block of request r, the next request that uses it.
  void find_next_uses() {
    std::vector<std::int64_t> next(blocks_.size(), std::numeric_limits<std::int64_t>::max());
    next_uses_.resize(trace_.requests.size());
    for (std::size_t r = trace_.requests.size(); r-- > 0;) {
      for (const std::int32_t id : trace_.requests[r].ids) {
        auto& use = next[static_cast<std::size_t>(id)];
        next_uses_[r].push_back(std::exchange(use, static_cast<std::int64_t>(r)));
      }
    }
  }

  std::int64_t serve(std::size_t r) {
    const auto& ids = trace_.requests[r].ids;
    std::size_t hits = 0;
    while (hits < ids.size() && at(ids[hits]).cached) ++hits;
    if (hits > 0) leaves_.erase({at(ids[hits - 1]).worth, ids[hits - 1]});  // it stays while the request runs

    std::size_t kept = hits;
    for (; kept < ids.size() && make_room(kept == 0 ? -1 : ids[kept - 1]); ++kept) {
      Block& block = at(ids[kept]);
      block.parent = kept == 0 ? -1 : ids[kept - 1];
      block.cached = true;
      if (block.parent >= 0) ++at(block.parent).children;
      ++count_;
    }
    for (std::size_t i = 0; i < kept; ++i) {
      at(ids[i]).worth = rule_ == Rule::kLru ? static_cast<std::int64_t>(r) : -next_uses_[r][i];
    }
    if (kept > 0 && at(ids[kept - 1]).children == 0) leaves_.insert({at(ids[kept - 1]).worth, ids[kept - 1]});
    return static_cast<std::int64_t>(hits);
  }

  // False when nothing is left but the running request's path, which ends in `tail`.
  bool make_room(std::int32_t tail) {
    while (count_ >= budget_) {
      if (leaves_.empty()) return false;
      const std::int32_t id = leaves_.begin()->second;
      leaves_.erase(leaves_.begin());
      at(id).cached = false;
      --count_;
      const std::int32_t parent = at(id).parent;
      // A parent on the running path has another child there, unless it is the path's end.
      if (parent >= 0 && --at(parent).children == 0 && parent != tail) leaves_.insert({at(parent).worth, parent});
    }
    return true;
  }

  const Trace& trace_;
  const std::int32_t budget_;
  const Rule rule_;
  std::vector<Block> blocks_;
  std::vector<std::vector<std::int64_t>> next_uses_;
  std::set<std::pair<std::int64_t, std::int32_t>> leaves_;  // cached blocks without cached children, but the path's end
  std::int64_t count_ = 0;
};

}  // namespace

std::int64_t simulate(const Trace& trace, std::int32_t budget, Rule rule) {
  return Simulator(trace, budget, rule).run();
}

}  // namespace coppice::bench
