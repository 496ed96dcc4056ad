// Scheduler: the queue, admission, the plan of a step, preemption. It alone moves sequences between the queue
// and the cache. Not thread safe; the engine's thread owns it. Owns no request: sequences belong to their
// OpenRequest, which outlives its place here.
//
// Invariants
//  1. waiting = ready + following; a sequence is in exactly one of waiting, running, ended.
//  2. running is in the order of first arrival, so a request's sequences stand together and the youngest
//     request is at the end.
//  3. A step has a row for every decoding sequence, then prefill chunks up to the budget. Beside decodes prompts get
//     half of the budget at most (a block if that is more), else all of it. The budget is never smaller than
//     max_batch + 1, so that decodes cannot keep a prefill out for ever.
//  4. The queue is served in the order of first arrival; only followers are passed over. So whoever lacks room is the
//     next to get it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/in_flight.h"
#include "engine/sequence.h"
#include "kv/cache.h"

namespace coppice::engine {

class Scheduler {
 public:
  Scheduler(kv::Cache& cache, const EngineConfig& config, Snapshot& figures);

  struct Objection {
    Refusal refusal = Refusal::kTooLong;
    std::string message;  ///< with the figures
  };
  /// Why a request can never run; nothing when it can.
  std::optional<Objection> objection(const Request& request) const;

  void enqueue(Sequence& fresh);

  struct NeverFits {
    Sequence* sequence = nullptr;
    kv::NoRoom room;
  };
  /// Admits from the queue, makes followers. Sequences for which there will never be room are added to
  /// `never` and stay in the queue: the caller releases them.
  void admit(std::vector<NeverFits>& never);

  /// Decides every running sequence's `rows`, appends their tokens to the cache, preempts for room. A lone
  /// runner that cannot grow is released and added to `pool_full`.
  void plan(std::vector<kv::CopyOp>& copies, std::vector<Sequence*>& pool_full);

  /// The step that plan() planned was run: publishes its tokens and wakes followers.
  void computed();

  /// `sibling` becomes one sample of `sequence`, whose prompt is computed: same tokens, same blocks.
  void part(Sequence& sequence, Sequence& sibling);

  enum class Release : std::uint8_t {
    kKeep,  ///< what was computed stays in the tree
    kDrop,  ///< the step in hand failed or is not run: only what was published stays
  };
  /// Ends a sequence in any state. Its blocks are back when this returns.
  void release(Sequence& sequence, Release how);

  const std::vector<Sequence*>& running() const { return running_; }
  int running_samples() const { return running_samples_; }
  int running_requests() const;
  int following() const { return in_flight_.followers(); }

  /// The youngest request that waits and never ran.
  OpenRequest* youngest_newcomer() const;

 private:
  void start(Sequence& sequence, kv::SeqId seq);
  void make_ready(const std::vector<Sequence*>& woken);
  void leave_running(Sequence& sequence, Release how);
  int prefill_budget(int decodes) const;
  void grant_prefill(int budget);
  bool extend(Sequence& sequence, std::vector<kv::CopyOp>& copies);
  bool preempt_youngest();

  kv::Cache& cache_;
  Snapshot& figures_;
  bool share_;
  int max_batch_;
  int step_tokens_;
  std::int32_t context_length_;
  InFlight in_flight_;
  std::set<Sequence*, ByArrival> waiting_;  ///< ready and following
  std::set<Sequence*, ByArrival> ready_;
  std::vector<Sequence*> running_;
  int running_samples_ = 0;
  std::vector<Sequence*> woken_;  // scratch
};

}  // namespace coppice::engine
