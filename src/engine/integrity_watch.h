// IntegrityWatch: lets the cache check itself each so many steps, counts, and tells what was found. A debugging aid: a
// check goes through the whole pool and the tree. Belongs to the engine's thread; the cache outlives it.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "engine/snapshot.h"
#include "kv/cache.h"

namespace coppice::engine {

class IntegrityWatch {
 public:
  /// every: steps from one check to the next; 0: none. `tell` may be empty.
  IntegrityWatch(const kv::Cache& cache, int every, std::function<void(const std::string&)> tell)
      : cache_(cache), every_(every), tell_(std::move(tell)) {}

  /// A step is over, its requests that ended have given up their blocks. The first one is checked, too.
  void stepped(Snapshot& figures) {
    if (every_ <= 0 || steps_++ % every_ != 0) return;
    const std::string finding = cache_.check_integrity();
    ++figures.integrity_checks;
    if (finding.empty()) return;
    ++figures.integrity_findings;
    if (tell_) tell_(finding);
  }

 private:
  const kv::Cache& cache_;
  int every_;
  std::function<void(const std::string&)> tell_;
  long steps_ = 0;
};

}  // namespace coppice::engine
