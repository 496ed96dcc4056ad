// Outflow: what of the cache goes to a store: what is worth keeping, and how it gets there. Not thread safe; the
// engine's thread owns it.
//
// Worth keeping is what a request started on that another one had computed: its second use. So a prompt's own end,
// which nobody asks for again, is not written. What is pinned is, too; what was used twice and is evicted before its
// turn came (or all that is evicted: TierConfig::all_evicted); and when the server stops, all that is cached, the
// hottest first.
//
// A step stores blocks into buffers, a copy of their bytes beside its work: a fiftieth of the time that steps take may
// go into that, or all of it while there is no other work. When the step has run the store is offered the buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/tier_config.h"
#include "executor/executor.h"
#include "kv/cache.h"
#include "tier/buffers.h"

namespace coppice::engine {

class Outflow {
 public:
  /// config: without a store until it has one.
  Outflow(kv::Cache& cache, const executor::ExecutorInfo& info, const TierConfig& config, TierFigures& figures)
      : cache_(cache), info_(info), config_(config), figures_(figures) {}

  /// A running sequence started on its first `len` computed tokens, or they are to be kept for another reason: what is
  /// needed to start on them again is worth storing.
  void keep(kv::SeqId seq, std::int32_t len);
  /// Nothing is any more, of what waits for its turn.
  void forget() { worth_.clear(); }
  /// From now on nothing of these owners (kv::Namespace::owner()) is stored, and of all others.
  void refuse(const std::set<std::string>& owners) { refused_ = {owners.begin(), owners.end()}; }
  /// All that is cached is worth storing.
  void keep_all();
  /// It is about to be evicted, and its blocks are written again after the next step's operations have begun.
  void evicted(const kv::Storable& one) noexcept;

  /// Nothing waits for its turn.
  bool empty() const { return worth_.empty() && evicted_.empty() && steps_.empty(); }
  /// Something waits for a step: it has a buffer, or there is one.
  bool ready() const;

  /// The stores of the next step, which has this number. rests: there is no other work.
  void add_stores(std::uint64_t step, std::vector<kv::BlockOp>& ops, std::vector<std::span<std::byte>>& outside,
                  bool rests);
  /// That step has run, in so many seconds.
  void stored(std::uint64_t step, double seconds);
  /// ... or failed, or was never begun.
  void failed(std::uint64_t step);

 private:
  /// What stands at a full block of the tree's full group.
  struct Worth {
    kv::BlockId block = kv::kNullBlock;
    kv::Digest digest{};
    bool all = false;    ///< other groups and the state, too
    bool begun = false;  ///< a part of it has left, the rest waits for buffers
  };
  struct Leaving {
    tier::Name name;
    tier::Buffer buffer;
    std::vector<kv::BlockId> pages;
    int group = 0;
    bool cached = false;  ///< it is marked as stored
    bool once = false;    ///< it was used once
  };
  struct Step {
    std::uint64_t number = 0;
    std::vector<Leaving> leaving;
  };

  bool is_refused(const kv::Storable& one) const;
  bool leave(const kv::Storable& one, std::vector<Leaving>& to, bool cached);
  bool store_next(std::vector<Leaving>& to);
  std::vector<Leaving> taken(std::uint64_t step);
  void give_up(const Leaving& each);

  kv::Cache& cache_;
  const executor::ExecutorInfo& info_;
  const TierConfig& config_;
  TierFigures& figures_;
  std::deque<Worth> worth_;
  std::set<std::string, std::less<>> refused_;
  std::vector<Leaving> evicted_;  ///< of the next step
  std::vector<Step> steps_;       ///< in hand: two at most
  double credit_ = 0;             ///< bytes that may be copied
};

}  // namespace coppice::engine
