// RequestTable: the open requests, and how each of them ends. Owns them and the events of the step in hand. Not thread
// safe.
//
// Invariants
//  1. A request is open from open() to end(). Its memory stays until deliver(), so that pointers to it and to its
//     sequences last for the step.
//  2. A request's last event, Event::ended, is put out by end(); or with its last sample's last piece by add(),
//     which then calls end().
//  3. Each request that was opened is counted by one of Snapshot's counters of ends, once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/config.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/snapshot.h"

namespace coppice::engine {

/// How a request ends.
struct Outcome {
  enum class Kind : std::uint8_t {
    kFinished,   ///< all of its samples ended by themselves
    kCancelled,  ///< its open samples end with Finish::kCancelled
    kTimedOut,   ///< ... with Finish::kTimeout; if no token went out, with a refusal
    kFailed,     ///< ... with Finish::kError or kUnsatisfiable; if no token went out, with a refusal
    kRefused,    ///< REQUIRES: no token went out
  };
  Kind kind = Kind::kFinished;
  Refusal refusal = Refusal::kFailed;  ///< if no token went out
  std::string message;                 ///< kFailed, and with a refusal
  double retry_seconds = 0;            ///< with kQueueFull
  Clock::time_point at{};              ///< kCancelled, kTimedOut
};
/// Something threw while it worked for the request.
Outcome failed(const std::exception& error);
Outcome refused(Refusal why, std::string message);

class RequestTable {
 public:
  RequestTable(Scheduler& scheduler, const EngineConfig& config, Snapshot& figures)
      : scheduler_(scheduler), config_(config), figures_(figures) {}

  /// Takes no memory. REQUIRES: the id is not open.
  OpenRequest& open(OpenRequests::node_type request);
  /// overdue() is to tell when its time is over, if it has a deadline.
  void watch_deadline(const OpenRequest& open);
  OpenRequest* find(RequestId id);
  /// Any that is open; nullptr: none is.
  OpenRequest* any() { return open_.empty() ? nullptr : &open_.begin()->second; }
  /// One whose deadline has passed; nullptr: none has.
  OpenRequest* overdue(Clock::time_point now);
  /// How many of each key's requests were never admitted. Until one ends.
  std::map<std::string_view, int> never_admitted() const;
  std::size_t size() const { return open_.size(); }
  /// Calls f(const OpenRequest&) for those that are open, in the order of their ids, until it returns false.
  void for_each(auto&& f) const {
    for (const auto& [id, open] : open_) {
      if (!f(open)) return;
    }
  }

  /// Puts out what a sample's token brought; or, without a token, nothing but the sample's end. `cut` ends a sample
  /// that doesn't end by itself: with the text it held back.
  /// REQUIRES: n_samples == 1. Throws what Generation::flush() throws; then the request can only be ended as failed.
  void add(Sequence& sequence, sampling::Piece&& piece, std::optional<sampling::Finish> cut = {});

  /// Puts out the next tokens of a prompt that is scored.
  void add_prompt(OpenRequest& open, std::vector<sampling::PromptToken> tokens);

  /// Puts out how far its prompt is, if it asked and there is news: `computed` tokens of it are.
  void add_progress(OpenRequest& open, std::int32_t computed);

  /// Puts out its prompt's embedding.
  void add_embedding(OpenRequest& open, std::vector<float> embedding);

  /// The one way out: releases the sequences, puts out the last events, counts, and removes the request.
  /// Throws what Generation::flush() throws, except for kFailed; then the request can only be ended as failed.
  void end(OpenRequest& open, const Outcome& outcome);

  /// The step is over: hands its events to the sink. Returns the requests that ended.
  OpenRequests deliver(const EventSink& sink);

 private:
  Event& put(OpenRequest& open);
  void put(OpenRequest& open, Sampled&& sampled);
  void put_refusal(OpenRequest& open, const Outcome& outcome);
  void end_samples(OpenRequest& open, sampling::Finish finish, const std::string& message);
  void count(const OpenRequest& open, const Outcome& outcome);
  double seconds_since_admission(const OpenRequest& open) const;

  Scheduler& scheduler_;
  const EngineConfig& config_;
  Snapshot& figures_;
  OpenRequests open_;
  OpenRequests ended_;  // in this step
  std::set<std::pair<Clock::time_point, RequestId>> deadlines_;
  std::uint64_t arrivals_ = 0;
  std::vector<Event> events_;
};

}  // namespace coppice::engine
