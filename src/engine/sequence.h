// What the engine knows of a request while it is open, and of each of its sequences. Plain state: the scheduler moves
// a Sequence between its stages, RequestTable makes events of what happens. Not thread safe.
//
// A fresh request is one Sequence that stands for all n samples: their prompt is prefilled once. With the prompt's last
// logits it becomes n Sequences of one sample each. A preempted Sequence waits again, with the tokens it has generated
// as part of the text to match.
//
// Invariants
//  1. kPrefill and kDecode have a live `seq` in the cache, no other stage has.
//  2. Between steps: computed_len(seq) == computed <= planned == len(seq), unless it loads. The tokens between are in
//     steps that run (planned_step.h). A kDecode sequence has at most one known token, out.back(), that is not
//     computed: exactly one if no step runs and it has no `logits`, none if it has.
//  3. n_samples > 1 only while `out` is empty.
//  4. Only one sequence of a request is there while next_scored is in the prompt, and then computed < next_scored: the
//     row before that token is computed, or computed again, by whoever is to score it. Likewise for next_pooled, and
//     then computed <= next_pooled.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "check/assert.h"
#include "engine/inflow.h"
#include "engine/request.h"
#include "kv/cache.h"

namespace coppice::engine {

struct OpenRequest;
struct KeyShare;

enum class SequenceStage : std::uint8_t {
  kReady,      ///< in the queue, may be admitted
  kFollowing,  ///< in the queue, waits for a leader's blocks (in_flight.h)
  kAsking,     ///< in the queue, waits for a store's answer (tiers.h)
  kPrefill,    ///< admitted; some of tokens() are not computed
  kDecode,     ///< one token a step
  kEnded,      ///< or not begun
};

struct Sequence {
  OpenRequest* request = nullptr;
  int sample = 0;     ///< the first sample that this sequence stands for
  int n_samples = 1;  ///< > 1: the prompt is not computed yet, the samples have not parted
  SequenceStage stage = SequenceStage::kEnded;

  std::vector<kv::Token> out;  ///< generated so far; survives a preemption
  kv::Text history;            ///< prompt + out, made when it was preempted after its first token

  kv::SeqId seq{};  ///< kPrefill, kDecode
  int places = 1;   ///< ... in the batch: n_samples, or one where there are other keys, until the samples part
  std::int32_t computed = 0;  ///< tokens whose keys are in the pool
  std::int32_t planned = 0;   ///< tokens that have a row in some step
  int rows = 0;               ///< rows in the step that is being planned; 0: none
  bool held_up = false;       ///< a medium that can't be cut found no room in the last step
  int draw = -1;  ///< the token behind `planned` is this one of those that the last planned step draws; -1: it isn't
  Clock::time_point last_token{};
  /// kDecode: those that the next token is drawn from, which waits until its sample is ready. Null: it doesn't.
  /// Siblings share them.
  std::shared_ptr<const std::vector<float>> logits;

  Sequence* leader = nullptr;  ///< kFollowing; this and `needed` are kept by InFlight
  std::int32_t needed = 0;     ///< tokens that the leader has to compute first

  /// What comes of it from a store. From kAsking to its end: while it loads, [computed, len(seq)) of it are awaited,
  /// and it has no rows.
  std::unique_ptr<Inflow> inflow;
  bool asked = false;  ///< the store was asked since it last came into the queue

  /// What has to be in the cache before the next token can be sampled.
  kv::TextView tokens() const;
  /// The beginning of tokens() that may be found there: whose logits are wanted has to be computed. It ends where they
  /// may be cut.
  kv::TextView matchable() const;
  /// Its tokens at positions [first, first + n). REQUIRES: they are known; of a kDecode sequence, in `out`.
  kv::TextView row_tokens(std::int32_t first, int n) const;
  /// Tokens that are known: of the prompt, and drawn.
  std::int32_t known() const;
  bool loads() const { return inflow != nullptr && inflow->loads; }
  /// It is admitted and has tokens() that no step has, and that no store brings.
  bool prefills() const {
    return stage == SequenceStage::kPrefill && !loads() && static_cast<std::size_t>(planned) < tokens().size();
  }
  /// Of its next `n` rows: those whose logits foretell a token of the prompt that is to be scored. Neighbours, as
  /// rows_with_scored() has it.
  struct Scored {
    int first = 0, n = 0;
  };
  Scored scored_in(int n) const;
  /// The most of its next rows, at least 0, of which `n` are such, all before the next medium that they foretell.
  int rows_with_scored(int n) const;
  /// Of its next `n` rows: those whose hidden states are to be pooled.
  int pooled_in(int n) const;
  bool admitted() const { return stage == SequenceStage::kPrefill || stage == SequenceStage::kDecode; }

 private:
  std::int32_t next_scored() const;
};

struct OpenRequest {
  /// With one sequence, not in the queue yet, that stands for all samples.
  explicit OpenRequest(Request r) : request(std::move(r)), ended(request.samples.size()) {
    usage.prompt_tokens = next_scored = static_cast<std::int32_t>(request.prompt.size());
    usage.pins.reserve(request.pins.size());
    if (request.scoring) {
      const std::int32_t from = std::min(next_scored, std::max(request.scoring->from, 1));
      next_scored = request.prompt.view().token_from(from);
    }
    next_pooled = usage.prompt_tokens;
    if (request.pooling) next_pooled = request.pooling->kind == Pooling::kMean ? 0 : usage.prompt_tokens - 1;
    Sequence& all = *sequences.emplace_back(std::make_unique<Sequence>());
    all.request = this;
    all.n_samples = static_cast<int>(request.samples.size());
  }
  OpenRequest(OpenRequest&&) = delete;

  Request request;
  std::size_t weight = 0;  ///< mailbox.h
  /// What the mailbox counts for it, without what it shares; 0: it is beyond the limit, and to be declined.
  std::size_t charge = 0;
  std::uint64_t arrival = 0;     ///< in which order it came
  KeyShare* share = nullptr;     ///< its key's (key_shares.h), from its first place in the queue to its end
  std::uint64_t nth_of_key = 0;  ///< in which order its key's requests came
  Usage usage;
  std::int32_t told = -1;  ///< the last Progress: so many tokens were computed
  /// The first token of the prompt whose log-probability is to go out, no medium; its length: none.
  std::int32_t next_scored = 0;
  std::int32_t next_pooled = 0;  ///< the first token of the prompt whose hidden state is to be pooled; its length: none
  std::vector<std::unique_ptr<Sequence>> sequences;  ///< ended ones included
  std::vector<bool> ended;                           ///< [n]: the sample's last piece went out
  bool admitted_before = false;                      ///< figures that count once were counted
  bool starts_by_loading = false;   ///< as of its first admission: its report and progress wait for what comes
  Clock::time_point admitted_at{};  ///< first
  std::shared_ptr<const CacheReport> report;  ///< as of its first admission, until an event takes it along

  std::shared_ptr<const CacheReport> watched_report;  ///< the same, for who watches; null: nobody did

  const std::string& key() const { return request.pin_payer; }
  bool streamed() const { return usage.completion_tokens > 0; }  ///< a token went out
  bool all_ended() const { return std::ranges::find(ended, false) == ended.end(); }
};
using OpenRequests = std::map<RequestId, OpenRequest>;

/// The order of a key's queue and, backwards, of preemption: by priority, then first arrival, then sample.
struct ByRank {
  static auto rank(const Sequence& s) {
    const OpenRequest& open = *s.request;
    return std::tuple(open.request.priority, open.arrival, s.sample);
  }
  bool operator()(const Sequence* a, const Sequence* b) const { return rank(*a) < rank(*b); }
};

/// The order in which they came, whatever their priority.
struct ByArrival {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return std::tuple(a->request->arrival, a->sample) < std::tuple(b->request->arrival, b->sample);
  }
};

inline kv::TextView Sequence::tokens() const {
  return out.empty() ? request->request.prompt.text() : history;
}

inline std::int32_t Sequence::known() const {
  return request->usage.prompt_tokens + static_cast<std::int32_t>(out.size());
}

inline kv::TextView Sequence::row_tokens(std::int32_t first, int n) const {
  const bool decodes = stage == SequenceStage::kDecode;
  const auto begin = static_cast<std::size_t>(decodes ? first - request->usage.prompt_tokens : first);
  const kv::TextView known = decodes ? kv::TextView(out) : tokens();
  COPPICE_ASSERT(begin + static_cast<std::size_t>(n) <= known.size());
  return known.subspan(begin, static_cast<std::size_t>(n));
}

inline kv::TextView Sequence::matchable() const {
  if (!request->request.match_cache && out.empty()) return {};
  const kv::TextView all = tokens();
  const std::int32_t n_prompt = request->usage.prompt_tokens;
  auto end = static_cast<std::int32_t>(all.size()) - 1;
  if (request->next_pooled < n_prompt) {
    end = request->next_pooled;
  } else if (request->next_scored < n_prompt) {
    end = std::max(request->next_scored, 1) - 1;
  }
  return all.first(static_cast<std::size_t>(all.cuts(end).before));
}

inline std::int32_t Sequence::next_scored() const {
  const std::int32_t next = std::max(request->next_scored, planned + 1);  // a step that runs may score those before
  const std::int32_t n_prompt = request->usage.prompt_tokens;             // the last row foretells the answer
  return next < n_prompt ? request->request.prompt.view().token_from(next) : n_prompt;
}

inline Sequence::Scored Sequence::scored_in(int n) const {
  const std::int32_t next = next_scored();
  const std::int32_t end = std::min(planned + n + 1, request->request.prompt.view().medium_from(next));
  return {next - 1 - planned, std::max(end - next, 0)};
}

inline int Sequence::rows_with_scored(int n) const {
  const std::int32_t next = next_scored(), end = request->request.prompt.view().medium_from(next);
  if (end - next > n) return next - 1 - planned + n;
  return end < request->usage.prompt_tokens ? end - planned : std::numeric_limits<int>::max();
}

inline int Sequence::pooled_in(int n) const {
  return request->request.pooling ? std::max(planned + n - std::max(request->next_pooled, planned), 0) : 0;
}

}  // namespace coppice::engine
