// GraphRunner: memory and threads for step graphs, and the graphs made so far.
//
// Owns a persistent thread pool, one compute buffer that all graphs share, and the most recently used graphs. Not
// thread safe; the executor's thread owns it.
//
// Invariants
//  1. Every cached graph's tensors lie in the compute buffer as it is now: when it must grow, older graphs go.
#pragma once

#include <list>
#include <memory>

#include "executor/ggml/graph/step_graph.h"
#include "executor/ggml/store/ggml_ptr.h"

namespace coppice::executor {

class GraphRunner {
 public:
  static constexpr std::size_t kMaxGraphs = 32;

  /// Throws model::LoadError when threads can't be had.
  explicit GraphRunner(int n_threads);

  /// A graph for the batch, with memory; one made before where the attention backend reuses graphs. Valid until the next
  /// call. Throws StepError.
  StepGraph& prepare(const DecoderParts& parts, const Batch& batch);

  /// Throws StepError. REQUIRES: graph was prepared last and its inputs are filled.
  void run(StepGraph& graph);

 private:
  std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool*)> threadpool_;
  BackendPtr cpu_;
  GraphAllocatorPtr allocator_;
  std::list<std::unique_ptr<StepGraph>> graphs_;  ///< most recently used first
};

}  // namespace coppice::executor
