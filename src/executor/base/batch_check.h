// What can be checked of a batch before a device sees it: ggml ends the process on what it dislikes, and a kernel
// writes anywhere. An executor says what it takes in BatchLimits.
#pragma once

#include "executor/executor.h"

namespace coppice::executor {

struct BatchLimits {
  int n_vocab = 0;
  std::int32_t context = 0;  ///< positions are below it
  int max_rows = 0;
  int max_sequences = 0;
  int block_size = 0;
  std::int32_t num_blocks = 0;
  int n_groups = 0;        ///< that have tables
  int state_pages = 0;     ///< of one state; 0: no recurrent layers
  int n_drawn = 0;         ///< tokens that the step before draws
  int embedding_size = 0;  ///< ExecutorInfo's
  bool both_ways = false;  ///< rows may see each other both ways
  bool positions = false;  ///< rows may have positions besides their indices
  /// What a block of each group, or a page of a state, takes outside of the pool: ExecutorInfo::outside_bytes(). Empty:
  /// blocks are neither stored nor loaded.
  std::vector<std::size_t> outside_bytes;
};

/// Throws StepError that names the first thing wrong. Changes nothing.
void check_batch(const Batch& batch, const BatchLimits& limits);

}  // namespace coppice::executor
