// StepLauncher: puts steps into the stream of a GPU, in order, and waits for none: plan, copies, launches, and what of
// it comes back. Not thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "executor/base/page_layout.h"
#include "executor/cuda/block_mover.h"
#include "executor/cuda/sample_memory.h"
#include "executor/cuda/step_memory.h"
#include "executor/cuda/stream.h"

namespace coppice::executor::cuda {

/// Where the host gets what it wants of a step, once that is done.
struct Landing {
  PinnedMemory logits, hidden, tokens;  ///< [logit_rows][n_vocab] f32, [hidden_rows][n_embd] bf16, [sample_rows]
  /// Room for a batch's. Throws model::LoadError.
  void make_room(const Batch& batch, const DecoderShape& shape);
};

class StepLauncher {
 public:
  /// On a GPU, which is current, in a stream of its own there. The others: StepMemory's.
  StepLauncher(const Gpu& gpu, const DecoderShape& shape, const StepLimits& limits,
               std::span<const AttentionGroup> groups, bool bytes, std::size_t page_bytes);

  /// decoder and pool stay where they are. Once, before the first step.
  void set(const Decoder& decoder, BlockMover::Pool pool);
  /// The same weights elsewhere. REQUIRES: no step is under way.
  void set(const Decoder& decoder);

  /// number: of the step: they follow each other. begun: recorded when the step's data is there. Throws StepError,
  /// model::LoadError or std::runtime_error; then a part of the step may be in the stream. REQUIRES: the batch is
  /// checked, and `landing` has room; the step before the one before was waited for.
  void launch(const Batch& batch, std::uint64_t number, const CudaEvent& begun, Landing& landing);
  /// Until what this step stores and loads is done.
  void wait_for_moves(std::uint64_t number) const { mover_.wait(number); }

  /// Of the last step that was launched. begun: recorded before the first kernel, drawn: behind the last. Throws as
  /// launch().
  void sample(std::span<const sampling::SamplerSpec> specs, const CudaEvent& begun, const CudaEvent& drawn,
              Landing& landing);

  const Stream& stream() const { return stream_; }
  const KvTraffic& traffic() const { return plan_.traffic(); }
  double planning_seconds() const { return planning_seconds_; }

 private:
  struct GraphEnd {
    void operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }
  };
  struct PartStart {
    std::size_t logits = 0, hidden = 0, samples = 0;  ///< rows of the parts before
    bool first = true, whole = true;                  ///< nothing is before it; the batch is the step
  };

  void launch_part(const Batch& batch, std::uint64_t number, const CudaEvent& begun, Landing& landing, PartStart start);
  bool plan(const Batch& batch);
  void launch_graph(const Batch& batch, Landing& landing);
  void launch_rows(const Batch& batch, Landing& landing, PartStart start);
  void read(void* to, const void* from, std::size_t bytes);
  void read_logits(Landing& landing, std::size_t row, const float* from, std::size_t n);
  DecoderStep step(int n_rows) const;
  CUgraphExec_st* graph_of(int n_rows);
  CUgraphExec_st* capture(int n_rows);

  Stream stream_;
  Gpu gpu_;  ///< with this stream
  DecoderShape shape_;
  StepMemory memory_;
  SampleMemory samples_;
  StepPlan plan_;
  Decoder decoder_;
  BlockMover mover_;
  /// Of steps whose rows are all wanted, by their number.
  std::vector<std::unique_ptr<CUgraphExec_st, GraphEnd>> graphs_;
  std::vector<std::int32_t> wanted_;
  /// Of each sample of the last step, the row of StepMemory::sampled_logits.
  std::vector<std::int32_t> sampled_logits_;
  double planning_seconds_ = 0;
};

}  // namespace coppice::executor::cuda
