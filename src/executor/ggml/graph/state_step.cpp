#include "executor/ggml/graph/state_step.h"

namespace coppice::executor {

void StateStep::fill(const Batch& batch) {
  sequences_.clear();
  n_rows_ = 0;
  for (const BatchSequence& s : batch.sequences) {
    sequences_.push_back({n_rows_, s.n_rows, s.state_in, s.state_out});
    n_rows_ += s.n_rows;
  }
}

void StateStep::reserve(std::size_t n) {
  for (std::vector<float>& scratch : scratch_) {
    if (scratch.size() < n) scratch.resize(n);
  }
}

}  // namespace coppice::executor
