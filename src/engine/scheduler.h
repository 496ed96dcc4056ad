// Scheduler: admission, the plan of a step, preemption. It alone moves sequences between the queue and the cache. Not
// thread safe; the engine's thread owns it. Owns no request: sequences belong to their OpenRequest, which outlives its
// place here.
//
// Invariants
//  1. A sequence is ready, following, running or ended. The queue holds those that are ready or following.
//  2. running is in the order of rank (priority, then first arrival), so a request's sequences stand together and the
//     first to be preempted is at the end.
//  3. A step has a row for every decoding sequence, then prefill chunks up to the budget (step_budget.h); one medium that can't be cut may
//     exceed that. Beside decodes prompts get
//     half of the budget at most (a block if that is more), else all of it. The budget is never smaller than
//     max_batch + 1, so that decodes cannot keep a prefill out for ever. Nor can more important prompts: of those who
//     prefill the first to arrive has a block's rows, or a quarter of the prompts' if that is less. Keys take turns, whatever
//     the priorities. The rows whose logits score prompts' tokens are shared out likewise, from a budget of their own: logits take memory.
//  4. Beside others a request is admitted only if afterwards every running sample can still grow by a block. So no
//     preemption follows an admission within block_size steps: a preempted request comes back when there is room, not as
//     soon as it just fits. Who runs alone needs no such room.
#pragma once

#include <cstdint>
#include <expected>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config.h"
#include "engine/in_flight.h"
#include "engine/planned_step.h"
#include "engine/prefill_shares.h"
#include "engine/queue.h"
#include "engine/sequence.h"
#include "engine/snapshot.h"
#include "engine/step_budget.h"
#include "kv/cache.h"

namespace coppice::engine {

class Scheduler {
 public:
  /// depth: the executor's. Where two steps may be in hand, one is planned while the one before it runs, and a chunk is half of the
  /// cache's max_extend.
  Scheduler(kv::Cache& cache, const EngineConfig& config, Snapshot& figures, int depth = 0);

  struct Objection {
    Refusal refusal = Refusal::kTooLong;
    std::string message;  ///< with the figures
  };
  /// Why a request can never run; nothing when it can.
  std::optional<Objection> objection(const Request& request) const;

  // Admission: begin_step(), then admit() whom next() names, as long as it names somebody and there is room.
  void enqueue(Sequence& fresh);
  void begin_step();
  /// nullptr: nobody waits, or the batch has no place for who is next.
  Sequence* next();
  enum class Turn : std::uint8_t { kRuns, kFollows };
  /// NoRoom: it stays in the queue. If it will never have room (NoRoom::never) the caller ends it.
  std::expected<Turn, kv::NoRoom> admit(Sequence& sequence);

  // Before that: a key of which nothing runs comes first, and may have place and room of others.

  /// The first in rank of a key of which nothing runs; nullptr: there is none. Each key once in a step.
  Sequence* next_without_running();
  /// The last in rank of a key's requests in the queue that were never admitted; nullptr: there is none.
  OpenRequest* last_never_admitted(std::string_view key) const;
  /// Are there places in the batch for it?
  bool has_place(const Sequence& sequence) const { return running_samples_ + sequence.n_samples <= max_batch_; }
  /// Preempts the last request of the key that runs most, for one that next_without_running() named; of its only request the last sample, or
  /// all of it if it has but one and holds more than half of the pool. False: there is none of these, or it would not do, or others made way
  /// for it before (OpenRequest::made_way).
  bool make_way(const Sequence& sequence);

  // A step: plan(), submitted(), launch(), computed(). Of those that work ahead the next plan() may come before computed().

  /// Decides the rows of planned(), `prompt_rows` of prompts at most, gives them slots in the cache, preempts for room. Returns a sequence
  /// that runs all alone and cannot grow any more: nothing is planned, and it is to be released, or gets room and another plan(). If this throws, whoever has `rows` can only be
  /// released; likewise whoever is in flying(), of computed().
  Sequence* plan(std::vector<kv::BlockOp>& ops, int prompt_rows = std::numeric_limits<int>::max());
  PlannedStep& planned() { return planned_; }

  /// The executor has planned(): nobody has `rows` any more.
  void submitted();

  /// planned() becomes flying(). REQUIRES: that one has been read.
  void launch();
  PlannedStep& flying() { return flying_; }

  /// flying() was run in so many seconds: publishes its tokens and wakes followers.
  void computed(double seconds);

  bool ahead() const { return steps_in_hand_ > 1; }
  /// A sample of so many tokens has all that max_tokens and the context allow.
  bool is_full(const OpenRequest& open, std::int32_t length) const;

  /// `sibling`, of the same request, becomes one sample of `sequence`, whose prompt is computed: same tokens, same
  /// blocks.
  void part(Sequence& sequence, Sequence& sibling);

  /// Ends a sequence in any state. What it computed stays in the tree, but for the rows of steps that did not come to
  /// their end: it is taken out of these. Its blocks are back when this returns.
  void release(Sequence& sequence);

  const std::vector<Sequence*>& running() const { return running_; }
  int running_samples() const { return running_samples_; }
  int running_requests() const;
  int following() const { return in_flight_.followers(); }
  /// Followers wait for blocks of flying(). They join the next step if that is planned when this one is through; else its leader gets a step
  /// for the few tokens that are its own, and reads all weights for them.
  bool flying_wakes() const { return flying_.step && in_flight_.near(); }

 private:
  std::int64_t growth_room() const;
  std::int64_t next_blocks(const Sequence& sequence) const;
  void leave_running(Sequence& sequence);
  int prefill_budget(int decodes, int prompt_rows) const;
  bool may_decode(const Sequence& sequence) const;
  int next_draw(const Sequence& sequence);
  void make_parts();
  bool extend(Sequence& sequence, std::vector<kv::BlockOp>& ops);
  int samples_of(const std::string& key) const;
  bool holds_most(const Sequence& sequence) const;
  void preempt(const OpenRequest& last);
  void preempt_one(Sequence& sequence);
  bool preempt_last();

  kv::Cache& cache_;
  Snapshot& figures_;
  bool share_;
  bool has_states_;
  int steps_in_hand_;
  int max_batch_;
  StepBudget budget_;
  bool growth_room_;
  std::int32_t context_length_;
  Queue queue_;
  InFlight in_flight_;
  PrefillShares prefill_shares_;
  std::vector<Sequence*> running_;
  int running_samples_ = 0;
  std::vector<const OpenRequest*> tried_;  ///< by next_without_running() in this step
  PlannedStep planned_, flying_;
};

}  // namespace coppice::engine
