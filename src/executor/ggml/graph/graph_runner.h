// GraphRunner: memory and threads for step graphs, and the graphs made so far.
//
// A step leaves those threads out that an encoder has meanwhile (port/threads_beside.h). Governed, it gets as many
// threads as it is worth (step_cost.h) and as there are processors free for (thread_governor.h).
//
// Owns a persistent thread pool, one compute buffer that all graphs share, and the most recently used graphs. Not
// thread safe; the executor's thread owns it.
//
// Invariants
//  1. Every cached graph's tensors lie in the compute buffer as it is now: when it must grow, older graphs go.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "executor/ggml/graph/step_cost.h"
#include "executor/ggml/graph/step_graph.h"
#include "executor/ggml/graph/thread_governor.h"
#include "executor/ggml/store/ggml_ptr.h"
#include "port/run_delays.h"

namespace coppice::executor {

class GraphRunner {
 public:
  static constexpr std::size_t kMaxGraphs = 32;

  /// governed: n_threads is the most, not what each step gets. Throws model::LoadError when threads can't be had.
  explicit GraphRunner(int n_threads, bool governed = false);

  /// A graph for the batch, with memory; one made before where the attention backend reuses graphs. Valid until the
  /// next call. Throws StepError.
  StepGraph& prepare(const DecoderParts& parts, const Batch& batch);

  /// Throws StepError. REQUIRES: graph was prepared last and its inputs are filled.
  void run(StepGraph& graph);

  ThreadFigures thread_figures() const {
    return {.most = n_threads_, .free = governor_ ? governor_->n_threads() : n_threads_, .used = used_};
  }

 private:
  struct MadeGraph {
    std::unique_ptr<StepGraph> graph;
    StepCost cost;
  };

  /// Memory for a graph. It may be in place of what the others had. False: there is none. Throws StepError.
  bool allocate(ggml_cgraph* graph);
  /// Of the step that runs next.
  int count_threads() const;
  /// Seconds that the threads have waited for a processor.
  double delays();
  void learn(double seconds, int n_threads);

  int n_threads_;
  int used_ = 0;              ///< by the last step
  std::vector<int> workers_;  ///< their ids, and of threads that began at the same time
  int caller_ = 0;            ///< that of the thread that ran the last step
  std::optional<port::RunDelays> delays_;
  std::optional<ThreadGovernor> governor_;
  std::unique_ptr<ggml_threadpool, void (*)(ggml_threadpool*)> threadpool_;
  BackendPtr cpu_;
  ggml_backend_set_n_threads_t set_threads_;
  GraphAllocatorPtr allocator_;  ///< null: it was lost, for want of memory
  std::list<MadeGraph> graphs_;  ///< most recently used first
};

}  // namespace coppice::executor
