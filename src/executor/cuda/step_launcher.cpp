#include "executor/cuda/step_launcher.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "attention/cuda/tree_attention.h"

namespace coppice::executor::cuda {

namespace {

void check_launch(const char* error) {
  if (error != nullptr) throw std::runtime_error(fmt::format("the GPU failed: {}", error));
}

void grow(PinnedMemory& memory, std::size_t bytes) {
  if (memory.size() >= bytes) return;
  memory = {};
  memory = PinnedMemory(std::bit_ceil(bytes));
}

}  // namespace

void Landing::make_room(const Batch& batch, const DecoderShape& shape) {
  grow(logits, batch.logit_rows.size() * static_cast<std::size_t>(shape.n_vocab) * sizeof(float));
  grow(hidden, batch.hidden_rows.size() * static_cast<std::size_t>(shape.n_embd) * sizeof(std::uint16_t));
  grow(tokens, batch.sample_rows.size() * sizeof(kv::Token));
}

StepLauncher::StepLauncher(const Gpu& gpu, const DecoderShape& shape, const StepLimits& limits,
                           std::span<const AttentionGroup> groups, bool bytes, std::size_t page_bytes)
    : gpu_(gpu.number(), stream_.get()),
      shape_(shape),
      memory_(gpu_, shape, limits, groups, bytes, page_bytes),
      samples_(memory_.most_samples(), shape.n_vocab),
      plan_(limits, groups, gpu_.n_multiprocessors(), shape.position_size,
            attention::cuda::takes_plain_kernel(gpu_, bytes)) {}

void StepLauncher::set(const Decoder& decoder, BlockMover::Pool pool) {
  set(decoder);
  mover_.set(std::move(pool));
}

void StepLauncher::set(const Decoder& decoder) {
  decoder_ = decoder;
  graphs_.clear();
}

bool StepLauncher::plan(const Batch& batch) {
  const auto start = std::chrono::steady_clock::now();
  const bool fits = plan_.plan(batch);
  planning_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return fits;
}

void StepLauncher::launch(const Batch& batch, std::uint64_t number, const CudaEvent& begun, Landing& landing) {
  sampled_logits_.resize(batch.sample_rows.size());
  std::iota(sampled_logits_.begin(), sampled_logits_.end(), 0);
  if (batch.n_rows() == 0) {  // operations on blocks alone
    begun.record(stream_);
    return mover_.run(batch, number, stream_);
  }
  launch_part(batch, number, begun, landing, {});
}

/// In two, one after the other, if the plan has no room.
void StepLauncher::launch_part(const Batch& batch, std::uint64_t number, const CudaEvent& begun, Landing& landing,
                               PartStart start) {
  if (!plan(batch)) {
    const int n = batch.n_rows(), cut = middle_cut(batch);
    if (cut == 0) throw StepError(fmt::format("the plan of {} rows that can't be computed apart has no room", n));
    const Batch first = part_of(batch, 0, cut);
    start.whole = false;
    launch_part(first, number, begun, landing, start);
    check(cudaStreamSynchronize(stream_.get()), "step");  // what was staged is read
    start.first = false;
    start.logits += first.logit_rows.size();
    start.hidden += first.hidden_rows.size();
    start.samples += first.sample_rows.size();
    return launch_part(part_of(batch, cut, n - cut), number, begun, landing, start);
  }
  const bool as_graph = start.whole && batch.n_rows() <= memory_.most_samples() && wants_all_logits(batch) &&
                        batch.embeddings.empty();  // they are not in the graph
  wanted_ = batch.logit_rows;
  if (as_graph) {
    wanted_.resize(static_cast<std::size_t>(batch.n_rows()));
    std::iota(wanted_.begin(), wanted_.end(), 0);
  } else {
    wanted_.insert(wanted_.end(), batch.hidden_rows.begin(), batch.hidden_rows.end());
    wanted_.insert(wanted_.end(), batch.sample_rows.begin(), batch.sample_rows.end());
  }
  memory_.upload(batch, plan_, wanted_, static_cast<int>(number % kStaged), stream_.get());
  if (start.first) {
    begun.record(stream_);
    mover_.run(batch, number, stream_);
  }
  as_graph ? launch_graph(batch, landing) : launch_rows(batch, landing, start);
}

/// Logits of rows that nobody wants cost little, and there are few.
void StepLauncher::launch_graph(const Batch& batch, Landing& landing) {
  check(cudaGraphLaunch(graph_of(batch.n_rows()), stream_.get()), "step");
  sampled_logits_ = batch.sample_rows;
  for (std::size_t i = 0; i < batch.logit_rows.size();) {
    std::size_t n = 1;  // neighbours come at once
    while (i + n < batch.logit_rows.size() && batch.logit_rows[i + n] == batch.logit_rows[i] + static_cast<int>(n)) ++n;
    const auto row = static_cast<std::size_t>(batch.logit_rows[i]);
    read_logits(landing, i, memory_.sampled_logits() + row * static_cast<std::size_t>(shape_.n_vocab), n);
    i += n;
  }
}

void StepLauncher::launch_rows(const Batch& batch, Landing& landing, PartStart start) {
  const DecoderStep s = step(batch.n_rows());
  check_launch(launch_layers(decoder_, s, gpu_));
  const int n_logits = static_cast<int>(batch.logit_rows.size()), n_hidden = static_cast<int>(batch.hidden_rows.size()),
            n_samples = static_cast<int>(batch.sample_rows.size());
  const auto output = [&](int first, int n, float* logits) {
    check_launch(launch_outputs(decoder_, s, memory_.outputs(first, n, logits), gpu_));
  };
  for (int at = 0; at < n_logits; at += memory_.most_logit_rows()) {
    const int n = std::min(memory_.most_logit_rows(), n_logits - at);
    output(at, n, memory_.logits());
    read_logits(landing, start.logits + static_cast<std::size_t>(at), memory_.logits(), static_cast<std::size_t>(n));
  }
  if (n_hidden > 0) {
    output(n_logits, n_hidden, nullptr);
    const std::size_t row_bytes = static_cast<std::size_t>(shape_.n_embd) * sizeof(std::uint16_t);
    read(landing.hidden.as<std::byte>(start.hidden * row_bytes), s.scratch.normed,
         static_cast<std::size_t>(n_hidden) * row_bytes);
  }
  if (n_samples > 0) {
    output(n_logits + n_hidden, n_samples,
           memory_.sampled_logits() + start.samples * static_cast<std::size_t>(shape_.n_vocab));
  }
}

void StepLauncher::read(void* to, const void* from, std::size_t bytes) {
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_.get()), "reading a step");
}

void StepLauncher::read_logits(Landing& landing, std::size_t row, const float* from, std::size_t n) {
  const std::size_t row_bytes = static_cast<std::size_t>(shape_.n_vocab) * sizeof(float);
  read(landing.logits.as<std::byte>(row * row_bytes), from, n * row_bytes);
}

void StepLauncher::sample(std::span<const sampling::SamplerSpec> specs, const CudaEvent& begun, const CudaEvent& drawn,
                          Landing& landing) {
  const SampleRows rows = samples_.upload(specs, sampled_logits_, memory_.sampled_logits(), stream_.get());
  begun.record(stream_);
  check_launch(cuda::launch(rows, gpu_));
  drawn.record(stream_);
  read(landing.tokens.as<void>(), rows.tokens, specs.size() * sizeof(kv::Token));
}

DecoderStep StepLauncher::step(int n_rows) const {
  DecoderStep step = memory_.step(n_rows);
  step.drawn = samples_.drawn();
  return step;
}

/// Of a step of so many rows, logits of all; captured when it is first wanted.
CUgraphExec_st* StepLauncher::graph_of(int n_rows) {
  if (graphs_.size() <= static_cast<std::size_t>(n_rows)) graphs_.resize(static_cast<std::size_t>(n_rows) + 1);
  auto& graph = graphs_[static_cast<std::size_t>(n_rows)];
  if (graph == nullptr) graph.reset(capture(n_rows));
  return graph.get();
}

CUgraphExec_st* StepLauncher::capture(int n_rows) {
  const DecoderStep s = step(n_rows);
  check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "graph");
  const char* error = launch_layers(decoder_, s, gpu_);
  if (error == nullptr) {
    error = launch_outputs(decoder_, s, memory_.outputs(0, n_rows, memory_.sampled_logits()), gpu_);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream_.get(), &graph);
  check_launch(error);
  check(ended, "graph");
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "graph");
  return made;
}

}  // namespace coppice::executor::cuda
