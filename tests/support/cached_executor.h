// CachedExecutor: an executor on a real cache: sequences are admitted, extended, run and published as the engine does
// it.
#pragma once

#include <span>
#include <vector>

#include "executor/executor.h"
#include "kv/cache.h"
#include "support/executor_rig.h"

namespace coppice::test {

class CachedExecutor {
 public:
  explicit CachedExecutor(executor::Executor& executor);

  kv::Cache& cache() { return cache_; }

  /// Admits a prompt, and runs what of it isn't cached, `chunk` tokens a step at most. Logits of these rows are
  /// appended to `rows` if there is one.
  kv::SeqId start(std::span<const kv::Token> prompt, int chunk = 256, std::vector<Row>* rows = nullptr);

  struct Part {
    kv::SeqId seq;
    std::span<const kv::Token> tokens;
  };
  /// Logits of all rows.
  std::vector<Row> step(const std::vector<Part>& parts);

 private:
  executor::Executor& executor_;
  kv::Cache cache_;
};

}  // namespace coppice::test
