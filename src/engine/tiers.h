// Tiers: between the cache and a store outside of the pool (tier/store.h). It asks what the store holds of a text,
// loads it, and offers it what is worth keeping. It decides nothing about sequences: the scheduler does, when it is
// told what has come.
//
// Bytes go through buffers. A step's block operations store blocks into some, and load others into blocks: so a block's
// bytes are moved on the engine's thread, between steps, and files and networks are waited for elsewhere. Of both kinds
// of buffers there is a fixed number: where none is free a write is dropped or put off, a load waits.
//
// Not thread safe; the engine's thread owns it. What the store's threads bring goes through a box of its own, which
// outlives it.
//
// Invariants
//  1. No sequence waits for the store longer than computing would take, as far as that can be told: then all that
//     hasn't come is a miss.
//  2. A buffer that a step reads or writes is kept until that step has run, or failed.
//  3. What comes back belongs to a ticket. Whoever leaves takes his ticket along, and what comes for it later is thrown
//     away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/inflow.h"
#include "engine/load_rate.h"
#include "engine/outflow.h"
#include "engine/piece_planner.h"
#include "engine/request.h"
#include "engine/tier_config.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

struct Sequence;
class TierBox;

class Tiers {
 public:
  /// wake: the engine's thread has something to do. Both are called on any thread.
  Tiers(kv::Cache& cache, const executor::ExecutorInfo& info, std::function<Clock::time_point()> now,
        std::function<void()> wake);
  ~Tiers();
  Tiers(const Tiers&) = delete;
  Tiers& operator=(const Tiers&) = delete;

  /// From now on there is a store. REQUIRES: there was none; the executor moves blocks; sharing is on.
  void attach(TierConfig config);
  bool on() const { return config_.store != nullptr; }
  const TierFigures& figures() const { return figures_; }
  int loading() const { return static_cast<int>(loading_.size()); }  ///< sequences
  std::int64_t pending_writes() const;
  Outflow& outflow() { return outflow_; }

  /// What the store holds of this model goes; with a place: if that is there. False: it isn't.
  bool forget(std::optional<tier::StoreKind> place = {});
  /// What the store holds of these owners (kv::Namespace::owner()) goes, and no more of it comes there.
  void revoke(const std::set<std::string>& owners);

  /// Of a waiting sequence: asks what follows the first `matched` tokens of those that it may find. False: there is
  /// nothing to ask for, or it was asked before. tokens_per_second: of prompts, lately; 0: not known.
  bool ask(Sequence& sequence, std::int32_t matched, double tokens_per_second, Clock::time_point now);
  /// Takes what the store's threads have brought. Returns the sequences that don't wait for an answer any more: what
  /// they have of an inflow can be loaded.
  std::vector<Sequence*> poll(Clock::time_point now);
  /// Fits the inflow of a sequence that is to be admitted to what the tree has by now. Returns how many tokens of it
  /// may come from there: where the inflow begins; all, if it has none, or none any more.
  std::size_t most_cached(Sequence& sequence, std::int32_t matched);
  /// The sequence runs, and has blocks for its inflow.
  void begin(Sequence& sequence, Clock::time_point now);
  /// It has no inflow any more.
  void drop(Sequence& sequence);

  /// How far a sequence's text is in the pool by now: whole blocks, all that is usable. over: no more will come.
  struct Came {
    std::int32_t upto = 0;
    bool over = false;
  };
  Came came(const Sequence& sequence) const;

  /// Adds what is to be moved in the next step: stores before its operations, loads behind them. rests: there is no
  /// other work. Returns a number for that; 0: there is nothing.
  std::uint64_t add_moves(std::vector<kv::BlockOp>& ops, std::vector<std::span<std::byte>>& outside, bool rests);
  /// A step with these moves has run, in so many seconds. Each number counts once; of others, and of 0, nothing is
  /// moved.
  void moved(std::uint64_t moves, double seconds, Clock::time_point now);
  /// ... or failed, or was never begun.
  void not_moved(std::uint64_t moves);

  /// Without work of its own the engine waits for the store's threads, until then at most. None: it does not.
  std::optional<Clock::time_point> waits_until(Clock::time_point now) const;
  /// There are moves for a step, though nothing else asks for one.
  bool ready() const;

 private:
  void answered(Sequence& sequence, const std::vector<bool>& held, Clock::time_point now);
  bool worth_loading(const Inflow& inflow, Clock::time_point now) const;
  void load_more(Clock::time_point now);
  void load(Inflow& inflow, std::size_t index, tier::Buffer buffer, Clock::time_point now);
  /// most: bytes, about.
  void add_loads(const Sequence& sequence, std::size_t most, std::vector<kv::BlockOp>& ops,
                 std::vector<std::span<std::byte>>& outside);
  bool comes_soon() const;
  void settle_loads(std::uint64_t moves, bool done);
  double seconds_to_compute(std::int32_t tokens, double otherwise) const;

  kv::Cache& cache_;
  const executor::ExecutorInfo& info_;
  std::function<Clock::time_point()> now_;
  TierConfig config_;
  PiecePlanner planner_;
  std::shared_ptr<TierBox> box_;
  std::uint64_t last_ticket_ = 0;
  std::map<std::uint64_t, Sequence*> asking_, loading_;
  /// A piece that a step in hand brings into the pool. Its buffer stays until that has run, also if its sequence
  /// leaves.
  struct Landing {
    std::uint64_t moves = 0, ticket = 0;
    std::size_t index = 0;
    tier::Buffer buffer;
  };
  std::vector<Landing> landing_;
  std::uint64_t last_moves_ = 0;
  double tokens_per_second_ = 0;  ///< of prompts; 0: not known
  TierFigures figures_;
  LoadRate rate_;
  Outflow outflow_;
};

}  // namespace coppice::engine
