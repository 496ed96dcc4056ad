// PromptStarts: what a prompt starts on when its request begins to run: what was found in the tree, and what a store
// brings then. It is counted, reported, pinned, and worth storing. Not thread safe; the engine's thread owns it.
#pragma once

#include <cstdint>

#include "engine/prefix_table.h"
#include "engine/rates.h"
#include "engine/request_table.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/snapshot.h"
#include "engine/tiers.h"
#include "engine/viewer.h"
#include "kv/cache.h"

namespace coppice::engine {

class PromptStarts {
 public:
  struct Parts {
    kv::Cache& cache;
    Tiers& tiers;
    Scheduler& scheduler;
    RequestTable& requests;
    PrefixTable& prefixes;
    Viewer& viewer;
    Rates& rates;
    Snapshot& figures;
  };
  explicit PromptStarts(const Parts& parts) : p_(parts) {}

  /// A sequence was admitted. queue_was_empty: nobody waited before this step's newcomers. Throws; then its request
  /// fails.
  void begin(Sequence& sequence, bool queue_was_empty, Clock::time_point now);
  /// So many tokens have come from a store, and no more will. They count as found. If it throws, the request fails.
  void loaded(Sequence& sequence, std::int32_t tokens, Clock::time_point now);
  /// Pins what is computed by now of the beginnings that are to stay. At once: windows go on, and leave them to
  /// eviction.
  void take_pins(Sequence& sequence, Clock::time_point now);

 private:
  void report(Sequence& sequence, Clock::time_point now, std::int32_t loaded = 0);
  void count_found(std::int32_t tokens);

  const Parts p_;
};

}  // namespace coppice::engine
