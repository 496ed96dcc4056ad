// StoreTraffic: the orders that an engine gets about its store: to have one, to forget, to keep all at the end. What
// goes there and comes from there meanwhile is tiers.h's. Not thread safe; the engine's thread owns it.
#pragma once

#include <optional>
#include <set>
#include <string>
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
  /// A reset of the cache: what the store holds of this model goes. False: there is no such place, or none yet; but a
  /// store that comes later forgets what is to be forgotten everywhere.
  bool forget(std::optional<tier::StoreKind> place);
  /// PrefixCommand::revoked.
  void revoke(std::set<std::string> owners);
  /// Running sequences that wait for the store.
  std::vector<Sequence*> loading() const;
  /// All that is cached is to be stored, the hottest first: by and by, and by settle() until then.
  void begin_to_settle(Clock::time_point until);
  /// Stores what is left, if there is to be time for that, and waits until the store is done. Nothing of it may keep
  /// the engine from ending. REQUIRES: no step is in hand.
  void settle();

 private:
  kv::Cache& cache_;
  Tiers& tiers_;
  Scheduler& scheduler_;
  StepRunner& runner_;
  const EngineConfig& config_;
  Clock::time_point until_{};  // settle()
  bool forgets_ = false;       // the store that comes
  std::set<std::string> revoked_;
};

}  // namespace coppice::engine
