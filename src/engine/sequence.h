// What the engine knows of a request while it is open, and of each of its sequences. Plain state: the
// scheduler moves a Sequence between its states, the engine makes events of what happens. Not thread safe.
//
// A fresh request is one Sequence that stands for all n samples: their prompt is prefilled once. With the
// prompt's last logits it becomes n Sequences of one sample each. A preempted Sequence waits again, with the
// tokens it has generated as part of the text to match.
//
// Invariants
//  1. kPrefill and kDecode have a live `seq` in the cache, no other state has.
//  2. Between steps: computed_len(seq) == computed; a kDecode sequence has exactly one token, out.back(), that is not
//     computed.
//  3. n_samples > 1 only while `out` is empty.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "engine/request.h"
#include "kv/cache.h"

namespace coppice::engine {

struct OpenRequest;
struct Sequence;

/// The order of the queue and, backwards, of preemption: by priority, then first arrival, then sample.
struct ByRank {
  bool operator()(const Sequence* a, const Sequence* b) const;
};
using Ranked = std::set<Sequence*, ByRank>;

/// The order in which they came, whatever their priority.
struct ByArrival {
  bool operator()(const Sequence* a, const Sequence* b) const;
};
using Arrived = std::set<Sequence*, ByArrival>;

enum class SequenceState : std::uint8_t {
  kReady,      ///< in the queue, may be admitted
  kFollowing,  ///< in the queue, waits for a leader's blocks [K7]
  kPrefill,    ///< admitted; some of tokens() are not computed
  kDecode,     ///< one token a step
  kEnded,
};

struct Sequence {
  OpenRequest* request = nullptr;
  int sample = 0;     ///< the first sample that this sequence stands for
  int n_samples = 1;  ///< > 1: the prompt is not computed yet, the samples have not parted
  SequenceState state = SequenceState::kReady;

  std::vector<kv::Token> out;      ///< generated so far; survives a preemption
  std::vector<kv::Token> history;  ///< prompt + out, made when it was preempted after its first token

  kv::SeqId seq{};            ///< kPrefill, kDecode
  std::int32_t computed = 0;  ///< tokens whose keys are in the pool
  int rows = 0;               ///< rows in the step in hand; 0: none
  bool sampled = false;       ///< its last row in the step in hand yields logits
  Clock::time_point last_token{};

  // Its nodes of the scheduler's sets while it is in neither: it never needs memory to go back to the queue.
  Ranked::node_type rank_place;
  Arrived::node_type arrival_place;

  // Kept by InFlight.
  std::multimap<std::int32_t, Sequence*> followers;  ///< by the length that must be published for them
  Sequence* leader = nullptr;                        ///< kFollowing
  std::multimap<std::int32_t, Sequence*>::iterator place;

  /// What has to be in the cache before the next token can be sampled.
  std::span<const kv::Token> tokens() const;
  bool admitted() const { return state == SequenceState::kPrefill || state == SequenceState::kDecode; }
};

struct OpenRequest {
  Request request;
  std::uint64_t arrival = 0;  ///< its place in the queue for good, also after a preemption
  kv::Namespace ns;
  Usage usage;
  std::vector<std::unique_ptr<Sequence>> sequences;  ///< ended ones included
  std::vector<bool> ended;                           ///< [n]: the sample's last piece went out
  int open_samples = 0;                              ///< of `ended`, those that are false
  bool admitted_before = false;                      ///< figures that count once were counted
  bool streamed = false;                             ///< a token went out
  bool closed = false;                               ///< it has had its last event
  bool failing = false;                              ///< all it lacks is that event: there was no memory for it
  int passed = 0;                                    ///< hot requests that were admitted ahead of it (scheduler.h)
  std::shared_ptr<const CacheReport> report;         ///< as of its first admission, until an event takes it along
};

inline std::span<const kv::Token> Sequence::tokens() const {
  return out.empty() ? std::span<const kv::Token>(request->request.prompt) : std::span<const kv::Token>(history);
}

inline bool ByRank::operator()(const Sequence* a, const Sequence* b) const {
  const auto rank = [](const Sequence& s) {
    return std::tuple(s.request->request.priority, s.request->arrival, s.sample);
  };
  return rank(*a) < rank(*b);
}

inline bool ByArrival::operator()(const Sequence* a, const Sequence* b) const {
  return std::tuple(a->request->arrival, a->sample) < std::tuple(b->request->arrival, b->sample);
}

}  // namespace coppice::engine
