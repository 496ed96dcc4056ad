// Scheduler: the queue, admission, the plan of a step, preemption. It alone moves sequences between the queue
// and the cache. Not thread safe; the engine's thread owns it. Owns no request: sequences belong to their
// OpenRequest, which outlives its place here.
//
// Invariants
//  1. A sequence is in exactly one of ready, following, running, ended. The queue is ready + following.
//  2. running is in the order of rank (priority, then first arrival), so a request's sequences stand together and the
//     first to be preempted is at the end.
//  3. A step has a row for every decoding sequence, then prefill chunks up to the budget. Beside decodes prompts get
//     half of the budget at most (a block if that is more), else all of it. The budget is never smaller than
//     max_batch + 1, so that decodes cannot keep a prefill out for ever. Nor can more important prompts: of those who
//     prefill the first to arrive has a block's rows, or a quarter of the prompts' if that is less.
//  4. The queue is served in the order of rank; followers, who wait by choice, and for nobody less important, are passed
//     over. A hot request, half of whose prompt lies in blocks that are in use, may be admitted ahead of earlier ones
//     that are not, so that those who share a prefix run together. But nobody is passed by more than max_passes such
//     requests in its life, nor by a hot one of lower priority, nor by one after it was preempted.
//  5. Of any max_passes + 1 admissions in a row (of sequences; those that come back after a preemption count) at least
//     one goes to the first arrival in ready at that moment, whatever the priorities. When it is its turn and it lacks
//     room, nobody else is admitted until it has it, or leaves ready. So a sequence that stays ready (does not follow)
//     is one of the next (max_passes + 1) * (k + 1) admitted, where k counts those in the queue that arrived before it,
//     and those of earlier arrival that come back by preemption meanwhile.
//  6. Beside others a request is admitted only if afterwards every running sample can still grow by a block. So no
//     preemption follows an admission within block_size steps: a preempted request comes back when there is room, not as
//     soon as it just fits. Who runs alone needs no such room.
#pragma once

#include <cstdint>
#include <expected>
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
  void admit(std::vector<NeverFits>& never, Clock::time_point now);

  /// Decides every running sequence's `rows`, appends their tokens to the cache, preempts for room. A sequence that
  /// runs all alone and cannot grow is released and added to `pool_full`.
  /// Sequences for which memory ran out are released, too, and added to `lost`: their requests have failed.
  /// REQUIRES: the vectors have room for max_batch sequences; likewise below.
  void plan(std::vector<kv::CopyOp>& copies, std::vector<Sequence*>& pool_full, std::vector<Sequence*>& lost);

  /// The step that plan() planned was run: publishes its tokens and wakes followers. Sequences for which memory ran
  /// out keep their rows and are added to `lost`: their requests have failed.
  void computed(std::vector<Sequence*>& lost);

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
  int prompt_rows() const;  ///< of the step that plan() planned
  /// Whose turn it was when admit() or part() threw.
  Sequence* in_hand() const { return in_hand_; }

  int following() const { return in_flight_.followers(); }

 private:
  enum class Turn : std::uint8_t { kAdmitted, kFollows };
  std::expected<Turn, kv::NoRoom> take_turn(Sequence& sequence, std::int32_t cached, Clock::time_point now);
  void admit_hot(Clock::time_point now);
  bool first_is_due() const { return passes_in_a_row_ >= max_passes_ && !by_arrival_.empty(); }
  bool may_be_passed(const OpenRequest& open) const;
  bool is_hot(const kv::Overlap& overlap, std::size_t n_tokens) const;
  kv::Overlap overlap(const Sequence& sequence) const;
  std::int64_t growth_room() const;
  std::int64_t next_blocks(const Sequence& sequence) const;
  void start(Sequence& sequence, kv::SeqId seq, Clock::time_point now);
  void make_ready(Sequence& sequence);
  void make_ready(const std::vector<Sequence*>& woken);
  void leave_ready(Sequence& sequence);
  void leave_running(Sequence& sequence, Release how);
  int prefill_budget(int decodes) const;
  void grant_prefill(int budget);
  bool extend(Sequence& sequence, std::vector<kv::CopyOp>& copies);
  bool preempt_last();

  kv::Cache& cache_;
  Snapshot& figures_;
  bool share_;
  int max_batch_;
  int step_tokens_;
  bool growth_room_;
  int max_passes_;
  std::int32_t context_length_;
  InFlight in_flight_;
  Ranked ready_;
  Arrived by_arrival_;       ///< the same sequences
  int passes_in_a_row_ = 0;  ///< admissions since the last that went to the first of by_arrival_
  std::vector<Sequence*> running_;
  int running_samples_ = 0;
  std::int64_t keep_free_ = 0;  // growth_room() as of this step's admissions
  Sequence* in_hand_ = nullptr;
  std::vector<Sequence*> woken_;    // scratch, with room for all who follow
  std::vector<Sequence*> skipped_;  // scratch
};

}  // namespace coppice::engine
