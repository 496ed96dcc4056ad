// From the sequences that have rows in a step to the executor's Batch. Memory of the last step is reused.
#pragma once

#include <span>
#include <vector>

#include "engine/sequence.h"
#include "executor/executor.h"
#include "kv/cache.h"

namespace coppice::engine {

/// Fills everything but `copies`. `readers` gets the sequences of which something comes in this step, in the order of their
/// rows: each has n_logits() rows of logits, of which its `scored` are the first, and `pooled` hidden states. The batch's tables are views into the cache, valid until it changes.
void build_batch(const kv::Cache& cache, std::span<Sequence* const> running, executor::Batch& batch,
                 std::vector<Sequence*>& readers);

}  // namespace coppice::engine
