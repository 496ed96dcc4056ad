#include "executor/cuda/cuda_executor.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <limits>
#include <utility>

#include "executor/base/attention_groups.h"
#include "executor/base/batch_check.h"
#include "executor/base/page_layout.h"
#include "executor/cuda/device_memory.h"
#include "executor/cuda/device_weights.h"
#include "executor/cuda/misfit.h"
#include "executor/cuda/step_memory.h"
#include "executor/cuda/step_plan.h"

namespace coppice::executor::cuda {

namespace {

using attention::KvFormat;
using Clock = std::chrono::steady_clock;

/// Of the memory that weights and steps leave free: the driver wants some for graphs.
constexpr double kPoolShare = 0.9;
/// Partial states of attention have room in so much memory; a step that needs more is run in parts.
constexpr std::size_t kStateBytes = std::size_t{256} << 20;
constexpr double kMiB = 1024.0 * 1024.0;

void check_launch(const char* error) {
  if (error != nullptr) throw std::runtime_error(fmt::format("the GPU failed: {}", error));
}

KvFormat checked_format(const CudaOptions& o) {
  const auto format = attention::find_format(o.kv_format);
  if (format == KvFormat::kF16 || format == KvFormat::kInt8) return *format;
  throw model::LoadError(fmt::format("--device cuda stores keys and values as f16 or int8, not as {}", o.kv_format));
}

model::Model checked_model(model::Model model) {
  if (const std::string why = misfit(model); !why.empty()) {
    throw model::LoadError(
        fmt::format("{} has {}, which --device cuda can't run yet; it can run {}", model.file->path(), why, kFitting));
  }
  return model;
}

/// Makes the device current on this thread; what it has.
int multiprocessors(const CudaOptions& o) {
  if (o.block_size != attention::cuda::kBlockSize)
    throw model::LoadError(fmt::format("--device cuda has blocks of {} tokens only", attention::cuda::kBlockSize));
  int n = 0;
  check(cudaSetDevice(o.device), "device");
  check(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, o.device), "device");
  return n;
}

struct StreamEnd {
  void operator()(CUstream_st* stream) const { cudaStreamDestroy(stream); }
};
struct GraphEnd {
  void operator()(CUgraphExec_st* graph) const { cudaGraphExecDestroy(graph); }
};

class CudaExecutor final : public BlockingExecutor {
 public:
  CudaExecutor(model::Model model, CudaOptions options, const Progress& progress)
      : options_(std::move(options)),
        n_workers_(multiprocessors(options_)),
        format_(checked_format(options_)),
        model_(checked_model(std::move(model))),
        layout_(make_page_layout(kv_layers(model_.spec), format_, options_.block_size)),
        groups_(attention_groups(model_.spec, layout_.groups)),
        weights_(model_, progress),
        step_limits_(step_limits(options_.max_rows, options_.max_sequences, context(), groups_[0].heads, kStateBytes)),
        memory_(weights_.decoder().shape, step_limits_, groups_, n_workers_, format_ == KvFormat::kInt8,
                layout_.page_bytes),
        plan_(step_limits_, groups_, n_workers_) {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    stream_.reset(stream);
    take_pool(progress);
    decoder_ = weights_.decoder();
    // Memory is cleared, and weights arrive, in CUDA's own stream, which this one doesn't wait for.
    check(cudaDeviceSynchronize(), "loading");
    fill_info();
    limits_ = {.n_vocab = info_.n_vocab,
               .context = context(),
               .max_rows = options_.max_rows,
               .max_sequences = options_.max_sequences,
               .block_size = options_.block_size,
               .num_blocks = info_.num_blocks,
               .n_groups = static_cast<int>(layout_.groups.size())};
  }

  const ExecutorInfo& info() const override { return info_; }
  const DeviceWeights& weights() const { return weights_; }
  const PageLayout& layout() const { return layout_; }
  KvTraffic kv_traffic() const override { return plan_.traffic(); }
  double planning_seconds() const override { return planning_seconds_; }

 private:
  Result run(const Batch& batch) override {
    const auto start = Clock::now();
    check_batch(batch, limits_);
    planning_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    check(cudaSetDevice(options_.device), "device");
    const std::size_t n_logits = batch.logit_rows.size() * static_cast<std::size_t>(info_.n_vocab);
    make_room(n_logits * sizeof(float), host_logits_);
    hidden_.clear();
    run(batch, host_logits_.as<float>());
    return {.logits = {std::span(host_logits_.as<float>(), n_logits), info_.n_vocab},
            .hidden_states = {hidden_, info_.n_embd},
            .tokens = {}};
  }

  std::int32_t context() const { return options_.context > 0 ? options_.context : model_.spec.context_length; }

  void take_pool(const Progress& progress) {
    if (progress) progress("memory", 0.0);
    const std::size_t page = layout_.page_bytes;
    const std::size_t bytes = options_.kv_bytes > 0
                                  ? options_.kv_bytes
                                  : static_cast<std::size_t>(kPoolShare * static_cast<double>(free_bytes()));
    constexpr std::size_t kMostBlocks = std::numeric_limits<std::int32_t>::max() / attention::cuda::kBlockSize;
    const std::size_t blocks = std::min(bytes / page, kMostBlocks);  // slots are numbered in 32 bits
    if (blocks < 2) {
      throw model::LoadError(fmt::format("a KV budget of {} bytes is too small: two blocks of {} tokens take {}", bytes,
                                         options_.block_size, 2 * page));
    }
    pool_ = DeviceMemory(blocks * page, "keys and values");
    info_.num_blocks = static_cast<std::int32_t>(blocks);
    const std::vector<LayerPlace> places = layer_places(model_.spec, layout_);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const PageLayout::Layer& in_page = layout_.layers[static_cast<std::size_t>(places[i].layer)];
      DecoderLayer& layer = weights_.layers()[i];
      layer.group = static_cast<int>(places[i].group);
      layer.keys = pool_.as<std::byte>(in_page.offset);
      layer.values = layer.keys + in_page.row_bytes * static_cast<std::size_t>(options_.block_size);
    }
  }

  void fill_info() {
    const model::ModelSpec& spec = model_.spec;
    const char* order = format_ == KvFormat::kInt8 ? "int8;byte-rows" : "bf16;panel-swizzled";
    info_ = {.model_name = spec.name,
             .architecture = spec.architecture,
             .attention = "tree",
             .n_vocab = spec.n_vocab,
             .n_embd = spec.n_embd,
             .context_length = spec.context_length,
             .block_size = options_.block_size,
             .num_blocks = info_.num_blocks,
             .bytes_per_block = layout_.page_bytes,
             .groups = layout_.groups,
             .model_digest = model_.digest,
             .layout = describe_layout(layout_, spec, order)};
  }

  static void make_room(std::size_t bytes, PinnedMemory& memory) {
    if (memory.size() >= bytes) return;
    memory = {};
    try {
      memory = PinnedMemory(std::bit_ceil(bytes));
    } catch (const std::runtime_error& e) {
      cudaGetLastError();  // it is told
      throw StepError(fmt::format("no room for {:.1f} MiB of logits: {}", static_cast<double>(bytes) / kMiB, e.what()));
    }
  }

  /// Logits go to `logits`, hidden states behind those that are there. In halves, one after the other, if the plan has no room.
  void run(const Batch& batch, float* logits) {
    const auto start = Clock::now();
    const bool fits = plan_.plan(batch);
    planning_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    if (!fits) {
      const int n = batch.n_rows(), half = n / 2;
      if (half == 0) throw StepError("the plan of a single row has no room");
      const Batch first = part_of(batch, 0, half);
      run(first, logits);
      run(part_of(batch, half, n - half), logits + first.logit_rows.size() * static_cast<std::size_t>(info_.n_vocab));
      return;
    }
    memory_.upload(batch, plan_, stream_.get());
    copy_blocks(batch.copies);
    if (is_decode(batch)) {
      check(cudaGraphLaunch(graph_of(batch.n_rows()), stream_.get()), "step");
      read_logits(batch.n_rows(), logits);
    } else {
      run_launches(batch, logits);
    }
    check(cudaStreamSynchronize(stream_.get()), "step");
    const int width = info_.n_embd;
    for (std::size_t i = 0; i < batch.hidden_rows.size() * static_cast<std::size_t>(width); ++i)
      hidden_.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(host_hidden_.as<std::uint16_t>()[i]) << 16));
  }

  /// Whether every sequence has one row, whose logits are wanted.
  bool is_decode(const Batch& batch) const {
    return batch.sequences.size() == batch.tokens.size() && batch.logit_rows.size() == batch.tokens.size() &&
           batch.hidden_rows.empty() && batch.n_rows() <= memory_.most_logit_rows();
  }

  void run_launches(const Batch& batch, float* logits) {
    const DecoderStep step = memory_.step(batch.n_rows());
    check_launch(launch_layers(decoder_, step, stream_.get()));
    const int n_logits = static_cast<int>(batch.logit_rows.size()),
              n_hidden = static_cast<int>(batch.hidden_rows.size());
    for (int at = 0; at < n_logits; at += memory_.most_logit_rows()) {
      const int n = std::min(memory_.most_logit_rows(), n_logits - at);
      check_launch(launch_outputs(decoder_, step, memory_.outputs(at, n, true), stream_.get()));
      read_logits(n, logits + static_cast<std::size_t>(at) * static_cast<std::size_t>(info_.n_vocab));
    }
    if (n_hidden == 0) return;
    check_launch(launch_outputs(decoder_, step, memory_.outputs(n_logits, n_hidden, false), stream_.get()));
    const std::size_t bytes = static_cast<std::size_t>(n_hidden) * static_cast<std::size_t>(info_.n_embd) * 2;
    make_room(bytes, host_hidden_);
    check(cudaMemcpyAsync(host_hidden_.as<void>(), step.scratch.normed, bytes, cudaMemcpyDeviceToHost, stream_.get()),
          "hidden states");
  }

  void read_logits(int n, float* to) {
    const std::size_t bytes = static_cast<std::size_t>(n) * static_cast<std::size_t>(info_.n_vocab) * sizeof(float);
    check(cudaMemcpyAsync(to, memory_.outputs(0, n, true).logits, bytes, cudaMemcpyDeviceToHost, stream_.get()),
          "logits");
  }

  /// Whole blocks: slots behind a copy's are not seen before they are written.
  void copy_blocks(std::span<const kv::CopyOp> copies) {
    for (const kv::CopyOp& op : copies) {
      if (op.n_slots == 0) continue;
      const auto at = [&](kv::BlockId block) {
        return pool_.as<std::byte>(static_cast<std::size_t>(block) * layout_.page_bytes);
      };
      const std::size_t bytes = layout_.groups[static_cast<std::size_t>(op.group)].bytes_per_token *
                                static_cast<std::size_t>(options_.block_size);
      if (op.src == op.dst) continue;
      check(cudaMemcpyAsync(at(op.dst), at(op.src), bytes, cudaMemcpyDeviceToDevice, stream_.get()), "copy of a block");
    }
  }

  /// Of a step of so many decodes, captured when it is first wanted.
  CUgraphExec_st* graph_of(int n_rows) {
    if (graphs_.size() <= static_cast<std::size_t>(n_rows)) graphs_.resize(static_cast<std::size_t>(n_rows) + 1);
    auto& graph = graphs_[static_cast<std::size_t>(n_rows)];
    if (graph == nullptr) graph.reset(capture(n_rows));
    return graph.get();
  }

  CUgraphExec_st* capture(int n_rows) {
    const DecoderStep step = memory_.step(n_rows);
    check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "graph");
    const char* error = launch_layers(decoder_, step, stream_.get());
    if (error == nullptr) error = launch_outputs(decoder_, step, memory_.outputs(0, n_rows, true), stream_.get());
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

  CudaOptions options_;
  int n_workers_;
  KvFormat format_;
  model::Model model_;
  PageLayout layout_;
  std::vector<AttentionGroup> groups_;
  DeviceWeights weights_;
  StepLimits step_limits_;
  StepMemory memory_;
  StepPlan plan_;
  DeviceMemory pool_;
  Decoder decoder_;
  std::unique_ptr<CUstream_st, StreamEnd> stream_;
  std::vector<std::unique_ptr<CUgraphExec_st, GraphEnd>> graphs_;  ///< by rows
  PinnedMemory host_logits_, host_hidden_;
  std::vector<float> hidden_;
  ExecutorInfo info_;
  BatchLimits limits_;
  double planning_seconds_ = 0;
};

}  // namespace

Devices find_devices() {
  Devices found;
  int n = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&n); status != cudaSuccess) {
    found.why_none = status == cudaErrorInsufficientDriver ? "there is no NVIDIA driver, or it is too old"
                                                           : cudaGetErrorString(status);
    return found;
  }
  for (int i = 0; i < n; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    if (properties.major == 8 || (properties.major == 9 && properties.minor == 0)) {
      found.usable.push_back({i, properties.name});
    } else {
      found.why_none = fmt::format("{} has compute capability {}.{}, and there is code for 8.x and 9.0",
                                   properties.name, properties.major, properties.minor);
    }
  }
  if (found.usable.empty() && found.why_none.empty()) found.why_none = "there is no NVIDIA GPU";
  return found;
}

std::unique_ptr<Executor> load_cuda_executor(model::Model model, const CudaOptions& options, const Progress& progress) {
  const auto start = Clock::now();
  if (progress) progress("weights", 0.0);
  auto executor = std::make_unique<CudaExecutor>(std::move(model), options, progress);
  const ExecutorInfo& info = executor->info();
  spdlog::info("loaded {} on GPU {}: {:.1f} MiB of weights; {} blocks of {} tokens, {:.2f} MiB each, {}; {:.2f} s",
               info.model_name, options.device, static_cast<double>(executor->weights().bytes()) / kMiB,
               info.num_blocks, info.block_size, static_cast<double>(info.bytes_per_block) / kMiB,
               info.layout.substr(0, info.layout.find(';')),
               std::chrono::duration<double>(Clock::now() - start).count());
  for (const std::string& line : describe_pages(executor->layout())) spdlog::info("{}", line);
  return executor;
}

}  // namespace coppice::executor::cuda
