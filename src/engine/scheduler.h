// Scheduler: admission, the plan of a step, preemption. It alone moves sequences between the queue and the cache. Not
// thread safe; the engine's thread owns it. Owns no request: sequences belong to their OpenRequest, which outlives its
// place here.
//
// Invariants
//  1. A sequence is ready, following, running or ended. The queue holds those that are ready or following.
//  2. running is in the order of rank (priority, then first arrival), so a request's sequences stand together. The
//     first to be preempted is the last of the key that holds most.
//  3. A step has a row for every decoding sequence, then prefill chunks up to the budget (step_budget.h); one medium
//     that can't be cut may exceed that. Beside decodes prompts get half of the budget at most (a block if that is
//     more), else all of it. The budget is never smaller than max_batch + 1, so that decodes cannot keep a prefill out
//     for ever. Nor can more important prompts: of those who prefill the first to arrive has a block's rows, or a
//     quarter of the prompts' if that is less. Keys take turns, whatever the priorities. The rows whose logits score
//     prompts' tokens are shared out in the same way, from a budget of their own: logits take memory.
//  4. Beside others a request is admitted only if afterwards every running sample can still grow by a block. So no
//     preemption follows an admission within block_size steps: a preempted request comes back when there is room, not
//     as soon as it just fits. Who runs alone needs no such room.
#pragma once

#include <cstdint>
#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/config.h"
#include "engine/in_flight.h"
#include "engine/key_shares.h"
#include "engine/planned_step.h"
#include "engine/prefill_shares.h"
#include "engine/sequence.h"
#include "engine/snapshot.h"
#include "engine/step_budget.h"
#include "engine/tiers.h"
#include "kv/cache.h"

namespace coppice::engine {

class Scheduler {
 public:
  /// depth: the executor's. Where two steps may be in hand, one is planned while the one before it runs, and a chunk is
  /// half of the cache's max_extend.
  Scheduler(kv::Cache& cache, Tiers& tiers, const EngineConfig& config, Snapshot& figures, int depth = 0);

  struct Objection {
    Refusal refusal = Refusal::kTooLong;
    std::string message;  ///< with the figures
  };
  /// Why a request can never run; nothing when it can.
  std::optional<Objection> objection(const Request& request) const;

  // Admission: begin_step(), then admit() whom next() names, as long as it names somebody.

  /// The first sequence of a request comes. If memory runs out, it isn't in the queue.
  void enqueue(Sequence& fresh, Clock::time_point now);
  /// The request has ended, and released its sequences.
  void leave(OpenRequest& open) { shares_.leave(open); }
  std::size_t keys() const { return shares_.keys(); }  ///< that have open requests
  /// The last in rank of a key's requests in the queue that were never admitted; nullptr: there is none.
  OpenRequest* last_never_admitted(std::string_view key);

  /// tokens_per_second: of prompts, lately; 0: not known.
  void begin_step(double tokens_per_second, Clock::time_point now);
  /// nullptr: nobody waits, or the batch has no place for who is next. Whoever it names is admitted, follows, asks,
  /// ends or is held up before the next call.
  Sequence* next();
  enum class Turn : std::uint8_t { kRuns, kFollows, kAsks };
  /// NoRoom, of blocks or places: it stays in the queue. If it will never have room (NoRoom::never) the caller ends it.
  std::expected<Turn, kv::NoRoom> admit(Sequence& sequence);
  /// Preempts the last sequence of the key that holds most of what admit() lacked. False: that would not be fair
  /// (key_shares.h).
  bool make_way(const Sequence& sequence);
  /// It was not admitted; it is not next any more in this step.
  void hold_up(const Sequence& sequence) { shares_.hold_up(sequence); }

  /// Takes what the store's threads have brought.
  void arrive(Clock::time_point now) {
    for (Sequence* const sequence : tiers_.poll(now)) sequence->stage = SequenceStage::kReady;
  }
  /// What of a sequence that loads is in the pool by now counts as computed. Returns how many tokens have come in all,
  /// when it loads no more: it goes on by computing. If it throws, the sequence can only be released.
  std::optional<std::int32_t> take_loaded(Sequence& sequence);
  /// Those who wait for blocks that have come.
  void wake() { in_flight_.wake(); }

  // A step: plan(), submitted(), launch(), computed(). Of those that work ahead the next plan() may come before
  // computed().

  /// Decides the rows of planned(), gives them slots in the cache, preempts for room. tokens_per_second: of prompts,
  /// lately; 0: not known. Returns a sequence that runs all alone and cannot grow any more: nothing is planned, and it
  /// is to be released, or gets room and another plan(). If this throws, whoever has `rows` can only be released. If
  /// computed() throws, whoever is in flying() can only be released.
  Sequence* plan(std::vector<kv::BlockOp>& ops, double tokens_per_second, Clock::time_point now);
  /// Somebody would have rows in the next step.
  bool has_rows() const;
  /// Nobody has rows in the next step.
  void plan_no_rows();
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
  /// Followers wait for blocks of flying(). They join the next step if that is planned when this one is through; else
  /// its leader gets a step for the few tokens that are its own, and reads all weights for them.
  bool flying_wakes() const { return flying_.step && in_flight_.near(); }

 private:
  std::int64_t growth_room() const;
  std::int64_t next_blocks(const Sequence& sequence) const;
  void leave_running(Sequence& sequence);
  bool may_decode(const Sequence& sequence) const;
  int next_draw(const Sequence& sequence);
  void make_parts();
  bool extend(Sequence& sequence, std::vector<kv::BlockOp>& ops);
  bool has_place(const Sequence& sequence) const;
  Sequence& last_of(const KeyShare& share) const;
  void keep_to_places();
  void preempt(const OpenRequest& last);
  void preempt_one(Sequence& sequence);
  bool preempt_last();

  kv::Cache& cache_;
  Tiers& tiers_;
  Snapshot& figures_;
  double tokens_per_second_ = 0;  ///< of prompts; 0: not known
  Clock::time_point now_{};
  bool share_;
  bool has_states_;
  int steps_in_hand_;
  int max_batch_;
  StepBudget budget_;
  bool growth_room_;
  std::int32_t context_length_;
  KeyShares shares_;
  InFlight in_flight_;
  PrefillShares prefill_shares_;
  std::vector<Sequence*> running_;
  std::vector<Sequence*> in_turn_;  ///< those that run, while a step is planned
  int running_samples_ = 0;         ///< their places
  bool measured_ = false;           ///< what keys hold, in this step
  PlannedStep planned_, flying_;
};

}  // namespace coppice::engine
