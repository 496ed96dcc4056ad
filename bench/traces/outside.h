// Outside: a second tier for a replay: what the engine would store there (engine/outflow.h decides), found again at
// once, and forgotten in the order of use (tier/disk/piece_index.h). Only names lie there, no bytes. kv::Cache of one
// group.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/outflow.h"
#include "engine/tier_config.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::bench {

class Outside {
 public:
  /// `pieces`: that it holds at most. all_evicted: also what was used once.
  Outside(kv::Cache& cache, std::int64_t pieces, bool all_evicted);
  ~Outside();
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  /// How far a prompt is in the pool or here, if `base` tokens, whole blocks, are in the pool. What is found counts as
  /// used.
  std::int32_t reach(std::span<const kv::Token> prompt, std::int32_t base);
  /// A sequence started on so many tokens.
  void started(kv::SeqId seq, std::int32_t tokens) { outflow_.keep(seq, tokens); }
  /// A step has run.
  void stepped();
  std::int64_t written() const;

 private:
  class Names;

  kv::Cache& cache_;
  executor::ExecutorInfo info_;
  std::shared_ptr<Names> names_;
  engine::TierConfig config_;
  engine::TierFigures figures_;
  engine::Outflow outflow_;
  std::uint64_t steps_ = 0;
};

}  // namespace coppice::bench
