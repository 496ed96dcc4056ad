// StateStep: which states a step's sequences read and write, and memory for the workers that do. Recurrent mixers'
// nodes point to it; it is filled anew each step and outlives the graphs.
//
// Not thread safe while it is filled; in between any worker may read it, and use the scratch of its own number.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "executor/executor.h"

namespace coppice::executor {

class StateStep {
 public:
  explicit StateStep(int n_threads) : scratch_(static_cast<std::size_t>(n_threads)) {}

  struct Sequence {
    int first_row, n_rows;
    std::span<const kv::BlockId> in, out;  ///< pages; in empty: a state of zeros
  };

  void fill(const Batch& batch);

  std::span<const Sequence> sequences() const { return sequences_; }
  int n_rows() const { return n_rows_; }  ///< of all sequences; rows behind them are padding

  /// Each worker has at least n floats from now on. REQUIRES: no worker uses its scratch.
  void reserve(std::size_t n);
  float* scratch(int worker) { return scratch_[static_cast<std::size_t>(worker)].data(); }

 private:
  std::vector<Sequence> sequences_;
  int n_rows_ = 0;
  std::vector<std::vector<float>> scratch_;  ///< [workers]
};

}  // namespace coppice::executor
