#include "executor/cuda/cuda_executor.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <deque>
#include <exception>
#include <limits>
#include <optional>
#include <utility>

#include "executor/base/attention_groups.h"
#include "executor/base/batch_check.h"
#include "executor/base/page_layout.h"
#include "executor/cuda/device_memory.h"
#include "executor/cuda/device_weights.h"
#include "executor/cuda/misfit.h"
#include "executor/cuda/step_launcher.h"
#include "executor/cuda/step_plan.h"
#include "executor/cuda/stream.h"

namespace coppice::executor::cuda {

namespace {

using attention::KvFormat;
using Clock = std::chrono::steady_clock;

/// Of the memory that weights and steps leave free: the driver wants some for graphs.
constexpr double kPoolShare = 0.9;

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

/// Makes the GPU current on this thread.
Gpu gpu_of(const CudaOptions& o) {
  if (o.block_size != attention::cuda::kBlockSize)
    throw model::LoadError(fmt::format("--device cuda has blocks of {} tokens only", attention::cuda::kBlockSize));
  check(cudaSetDevice(o.device), "device");
  return Gpu(o.device);
}

class CudaExecutor final : public Executor {
 public:
  CudaExecutor(model::Model model, CudaOptions options, const Progress& progress)
      : options_(std::move(options)),
        gpu_(gpu_of(options_)),
        format_(checked_format(options_)),
        model_(checked_model(std::move(model))),
        layout_(make_page_layout(kv_layers(model_.spec), format_, options_.block_size)),
        groups_(attention_groups(model_.spec, layout_.groups)),
        weights_(std::in_place, gpu_, model_, progress),
        shape_(weights_->decoder().shape),
        runner_(gpu_, shape_,
                step_limits(options_.max_rows, options_.max_sequences, context(), groups_,
                            options_.state_bytes > 0 ? options_.state_bytes : state_bytes(total_bytes())),
                groups_, format_ == KvFormat::kInt8, layout_.page_bytes) {
    take_pool(progress);
    place_layers();
    runner_.set(weights_->decoder(), {pool_.as<std::byte>(), layout_.page_bytes, layout_.groups});
    // Memory is cleared, and weights arrive, in CUDA's own stream, which the steps' doesn't wait for.
    check(cudaDeviceSynchronize(), "loading");
    fill_info();
    limits_ = {.n_vocab = info_.n_vocab,
               .context = context(),
               .max_rows = options_.max_rows,
               .max_sequences = options_.max_sequences,
               .block_size = options_.block_size,
               .num_blocks = info_.num_blocks,
               .n_groups = static_cast<int>(layout_.groups.size()),
               .embedding_size = info_.embedding_size,
               .both_ways = true,
               .positions = info_.positions};
    for (int g = 0; g < limits_.n_groups; ++g) limits_.outside_bytes.push_back(info_.outside_bytes(g));
    look_at_memory();
  }
  ~CudaExecutor() override {
    cudaSetDevice(gpu_.number());  // the thread may have had another one in hand
    cudaDeviceSynchronize();
  }

  bool know_memory(std::span<std::byte> memory) override {
    if (cudaSetDevice(gpu_.number()) != cudaSuccess) return false;
    if (cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable) == cudaSuccess) return true;
    cudaGetLastError();  // else the next kernel's launch would tell it
    return false;
  }
  void forget_memory(std::span<std::byte> memory) override {
    cudaSetDevice(gpu_.number());
    if (cudaHostUnregister(memory.data()) != cudaSuccess) cudaGetLastError();
  }

  const ExecutorInfo& info() const override { return info_; }
  const DeviceWeights& weights() const { return *weights_; }
  const PageLayout& layout() const { return layout_; }
  int depth() const override { return 1; }
  KvTraffic kv_traffic() const override { return runner_.traffic(); }
  double planning_seconds() const override { return checking_seconds_ + runner_.planning_seconds(); }
  DeviceFigures device_figures() const override { return figures_; }

  bool sleep() override {
    guarded([&] {
      check(cudaDeviceSynchronize(), "sleeping");
      weights_.reset();
      look_at_memory();
    });
    spdlog::info("asleep: no requests for a while, so the weights' memory on the GPU is let go");
    return true;
  }
  bool wake(Clock::time_point /*until*/) override {
    const auto start = Clock::now();
    if (model::was_changed(model_)) {  // what is cached was computed with other weights
      const std::string sentence = fmt::format("{} was changed while it was served", model_.file->path());
      if (options_.lost) options_.lost(sentence);
      throw StepError(sentence);
    }
    spdlog::info("awake: a request has come, the weights are read again");
    guarded([&] {
      weights_.emplace(gpu_, model_, Progress{});
      place_layers();
      runner_.set(weights_->decoder());
      check(cudaDeviceSynchronize(), "waking");
      look_at_memory();
    });
    spdlog::info("the weights are back after {:.2f} s", std::chrono::duration<double>(Clock::now() - start).count());
    return true;
  }

  Step submit(const Batch& batch) override {
    const auto start = Clock::now();
    check_batch(batch, limits_);
    checking_seconds_ += std::chrono::duration<double>(Clock::now() - start).count();
    if (flights_.size() > 1) throw StepError("two steps are under way already");
    Flight flight{.step = Step{last_ + 1},
                  .n_logits = batch.logit_rows.size(),
                  .n_hidden = batch.hidden_rows.size(),
                  .n_samples = batch.sample_rows.size(),
                  .ahead = !flights_.empty()};
    Landing& landing = landings_[(last_ + 1) % kLandings];
    const Times& times = times_[(last_ + 1) % kTimes];
    guarded([&] {
      landing.make_room(batch, shape_);
      runner_.launch(batch, last_ + 1, times.begun, landing);
      times.computed.record(runner_.stream());
      times.done.record(runner_.stream());
    });
    ++last_;
    limits_.n_drawn = static_cast<int>(flight.n_samples);
    flights_.push_back(std::move(flight));
    return Step{last_};
  }

  void sample(Step step, std::span<const sampling::SamplerSpec> specs) override {
    Flight& flight = flights_.back();
    if (specs.empty()) return;
    try {
      if (flight.step != step || specs.size() != flight.n_samples) throw StepError("other samples than were submitted");
      const Times& times = times_[last_ % kTimes];
      guarded([&] {
        runner_.sample(specs, times.sampling, times.drawn, landings_[last_ % kLandings]);
        times.done.record(runner_.stream());
      });
      flight.sampled = true;
    } catch (const StepError&) {
      flight.error = std::current_exception();
    }
  }

  Result wait(Step step) override {
    if (flights_.empty() || flights_.front().step != step) throw StepError("this step is not the oldest under way");
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    const auto number = static_cast<std::uint64_t>(step);
    try {
      if (flight.error) {
        // A step that was submitted behind it may still read what was staged for it, which the next one writes over.
        guarded([&] { check(cudaStreamSynchronize(runner_.stream().get()), "the step behind one that failed"); });
        std::rethrow_exception(flight.error);
      }
      guarded([&] {
        times_[number % kTimes].done.wait();
        runner_.wait_for_moves(number);
        add_times(flight, number);
      });
    } catch (const StepError&) {
      flights_.clear();
      limits_.n_drawn = 0;
      throw;
    }
    return result_of(flight, landings_[number % kLandings]);
  }

 private:
  struct Flight {
    Step step{};
    std::size_t n_logits = 0, n_hidden = 0, n_samples = 0;
    bool ahead = false;  ///< submitted while another one was under way
    bool sampled = false;
    std::exception_ptr error;
  };
  /// Of a step. There are three, as of landings: what a step gave is looked at while the two behind it are under way.
  struct Times {
    CudaEvent begun, computed, sampling, drawn, done;
  };
  static constexpr std::size_t kLandings = 3, kTimes = 3;

  /// Runs what talks to the GPU. Throws StepError, behind a time when nothing is under way there any more.
  template <class F>
  void guarded(F&& f) {
    try {
      check(cudaSetDevice(gpu_.number()), "device");
      f();
    } catch (const std::exception& error) {
      // A fault of a kernel or of the card stays: all that follows tells it again.
      if (const cudaError_t status = cudaDeviceSynchronize(); status != cudaSuccess) {
        const std::string sentence =
            fmt::format("GPU {} is lost: {} ({})", gpu_.number(), cudaGetErrorString(status), error.what());
        if (options_.lost) options_.lost(sentence);
        throw StepError(sentence);
      }
      if (dynamic_cast<const model::LoadError*>(&error) != nullptr) throw OutOfMemory(error.what());
      throw StepError(error.what());
    }
  }

  void add_times(const Flight& flight, std::uint64_t number) {
    const Times& times = times_[number % kTimes];
    const double forward = times.computed.seconds_since(times.begun);
    double sampling = 0, gap = 0;
    if (flight.sampled) {
      sampling = times.drawn.seconds_since(times.sampling);
      gap = times.sampling.seconds_since(times.computed);
    }
    figures_.forward_seconds += forward;
    figures_.sampling_seconds += sampling;
    if (flight.ahead) {
      const Times& before = times_[(number - 1) % kTimes];
      gap += times.begun.seconds_since(last_sampled_ ? before.drawn : before.computed);
      figures_.gap_seconds += gap;
      figures_.ahead_seconds += forward + sampling + gap;
    }
    last_sampled_ = flight.sampled;
    if (Clock::now() - looked_at_memory_ > std::chrono::seconds(1)) look_at_memory();
  }

  void look_at_memory() {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "memory");
    figures_.memory_bytes = total;
    figures_.memory_used = total - free;
    looked_at_memory_ = Clock::now();
  }

  Result result_of(const Flight& flight, Landing& landing) {
    hidden_.clear();
    for (std::size_t i = 0; i < flight.n_hidden * static_cast<std::size_t>(info_.n_embd); ++i)
      hidden_.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(landing.hidden.as<std::uint16_t>()[i]) << 16));
    const std::size_t n_logits = flight.n_logits * static_cast<std::size_t>(info_.n_vocab);
    return {.logits = {std::span(landing.logits.as<float>(), n_logits), info_.n_vocab},
            .hidden_states = {hidden_, info_.n_embd},
            .tokens = std::span(landing.tokens.as<const kv::Token>(), flight.sampled ? flight.n_samples : 0)};
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
      throw model::LoadError(fmt::format("a KV budget of {} bytes is too small: two blocks of {} tokens take {} bytes",
                                         bytes, options_.block_size, 2 * page));
    }
    pool_ = DeviceMemory(blocks * page, "keys and values");
    info_.num_blocks = static_cast<std::int32_t>(blocks);
  }

  /// Tells the weights where their layers' keys and values lie.
  void place_layers() {
    const std::vector<LayerPlace> places = layer_places(model_.spec, layout_);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const PageLayout::Layer& in_page = layout_.layers[static_cast<std::size_t>(places[i].layer)];
      DecoderLayer& layer = weights_->layers()[i];
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
             .layout = describe_layout(layout_, spec, order),
             .moves_blocks = true,
             .embedding_size = spec.embedding_size(),
             .positions = spec.has_sections()};
  }

  CudaOptions options_;
  Gpu gpu_;
  KvFormat format_;
  model::Model model_;
  PageLayout layout_;
  std::vector<AttentionGroup> groups_;
  std::optional<DeviceWeights> weights_;  ///< none while it sleeps
  DecoderShape shape_;
  StepLauncher runner_;
  DeviceMemory pool_;
  std::array<Landing, kLandings> landings_;
  std::array<Times, kTimes> times_;
  std::deque<Flight> flights_;  ///< submitted and not waited for: two at most
  std::uint64_t last_ = 0;      ///< number of the last step
  bool last_sampled_ = false;   ///< of the last that was waited for
  std::vector<float> hidden_;
  ExecutorInfo info_;
  BatchLimits limits_;
  double checking_seconds_ = 0;
  DeviceFigures figures_;
  Clock::time_point looked_at_memory_;
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
  if (options.log && options.log != spdlog::default_logger()) spdlog::set_default_logger(options.log);
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
