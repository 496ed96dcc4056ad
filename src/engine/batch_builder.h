// From the plan of a step to the executor's Batch. Memory of the last step is reused.
#pragma once

#include "engine/planned_step.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

/// Fills everything but `block_ops`. Each part has n_logits() rows of logits and n_hidden() hidden states, in the order
/// of its wanted rows and of the parts. The batch's tables are views into the cache, valid until it changes. REQUIRES:
/// no part's sequence has left.
void build_batch(const kv::Cache& cache, const PlannedStep& step, executor::Batch& batch);

}  // namespace coppice::engine
