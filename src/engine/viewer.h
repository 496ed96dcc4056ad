// Viewer: makes the Views that are asked for, and remembers the requests that ended last. Not thread safe; belongs to
// the engine's thread. Of what a View costs: kv::kMostLooked.
#pragma once

#include <deque>

#include "engine/request_table.h"
#include "engine/sequence.h"
#include "engine/view.h"
#include "kv/cache.h"

namespace coppice::engine {

class Viewer {
 public:
  explicit Viewer(kv::Cache& cache) : cache_(cache) {}

  /// The step in hand begins.
  void set_time(Clock::time_point now);
  /// Somebody asked within the last seconds: reports of who is admitted are of interest.
  bool watched() const { return now_ - last_asked_ < kWatching; }
  View answer(const Question& question, const RequestTable& requests);
  /// If it throws, nothing has changed.
  void remember(const OpenRequest& ended);

 private:
  static constexpr std::chrono::seconds kWatching{5};
  static constexpr std::size_t kMostOpen = 96, kMostEnded = 48;  ///< requests in a View

  struct Ended {
    kv::Namespace ns;
    RequestView view;
    Clock::time_point at;
  };
  double seconds(Clock::time_point at) const { return std::chrono::duration<double>(at - start_).count(); }
  RequestView describe(const OpenRequest& open) const;

  kv::Cache& cache_;
  Clock::time_point now_{}, start_{}, last_asked_{};
  bool started_ = false;
  std::deque<Ended> ended_;  // the last first
};

}  // namespace coppice::engine
