// StoreTraffic: the orders that an engine gets about its store: to have one, to forget, to keep all at the end. What goes there and comes from there
// meanwhile is tiers.h's. Not thread safe; the engine's thread owns it.
#pragma once

#include <memory>
#include <vector>

#include "engine/config.h"
#include "engine/scheduler.h"
#include "engine/step_runner.h"
#include "engine/tier_config.h"
#include "engine/tiers.h"
#include "kv/cache.h"

namespace coppice::engine {

class StoreTraffic {
 public:
  StoreTraffic(kv::Cache& cache, Tiers& tiers, Scheduler& scheduler, StepRunner& runner, const EngineConfig& config)
      : cache_(cache), tiers_(tiers), scheduler_(scheduler), runner_(runner), config_(config) {}

  /// False: it can't be used here; everything goes on without it.
  bool attach(TierConfig&& tiers);
  /// Running sequences that wait for the store.
  std::vector<Sequence*> loading() const;
  /// Stores what is cached, the hottest first, as far as time goes. Nothing of it may keep the engine from ending. REQUIRES: no step is in hand.
  void settle();

 private:
  kv::Cache& cache_;
  Tiers& tiers_;
  Scheduler& scheduler_;
  StepRunner& runner_;
  const EngineConfig& config_;
};

}  // namespace coppice::engine
